"""What the code shows."""

import base64

from harness import KernelCase, need

PNG = b"\x89PNG\r\n\x1a\n"


def is_png(data):
    return base64.b64decode(data["image/png"]).startswith(PNG)


class Displays(KernelCase):
    def test_display(self):
        result = self.run_well("display('text', 5)\ndisplay({'a': 1})")
        self.assertEqual(result.displays, [{"text/plain": "'text'"}, {"text/plain": "5"}, {"text/plain": "{'a': 1}"}])
        self.assertNotIn("value", result.done)

    def test_the_forms_of_objects(self):
        self.run_well("""
class Rich:
    def _repr_html_(self): return '<b>x</b>'
    def _repr_png_(self): return b'\\x89PNG'
    def _repr_svg_(self): return '<svg/>'
    def _repr_markdown_(self): return '**x**'
    def _repr_latex_(self): return '$x$'
    def _repr_json_(self): return {'a': (1, 2)}
    def __repr__(self): return 'rich'
""")
        result = self.run_well("display(Rich())")
        self.assertEqual(result.displays, [{
            "text/html": "<b>x</b>", "image/png": base64.b64encode(b"\x89PNG").decode(), "image/svg+xml": "<svg/>",
            "text/markdown": "**x**", "text/latex": "$x$", "application/json": '{"a":[1,2]}', "text/plain": "rich",
        }])  # fmt: skip
        result = self.run_well("Rich()")
        self.assertEqual((len(result.displays), result.text), (1, "rich"))

    def test_bundles(self):
        code = "class B:\n    def _repr_mimebundle_(self, include=None, exclude=None): return {'text/html': 'h', 'application/x': b'b'}, {}\nB()"
        self.assertEqual(self.run_well(code).displays[0]["text/html"], "h")
        result = self.run_well("display({'text/html': '<i>', 'image/png': b'p'}, raw=True)")
        self.assertEqual(result.displays, [{"text/html": "<i>", "image/png": "cA=="}])

    def test_forms_that_fail_are_left_out(self):
        self.run_well(
            "class A:\n    def _repr_html_(self): 1 / 0\n    def _repr_png_(self): return None\n    def _repr_svg_(self): return 5\n    def __repr__(self): return 'a'"
        )
        self.assertEqual(self.run_well("display(A())").displays, [{"text/plain": "a"}])
        self.assertEqual(self.run_well("A()").displays, [])
        self.assertEqual(self.run_well("display(A)").displays, [{"text/plain": "<class '__main__.A'>"}])

    def test_objects_that_claim_everything(self):
        self.assertEqual(self.run_well("from unittest.mock import MagicMock\nMagicMock()").displays, [])

    def test_too_large(self):
        code = "class A:\n    def _repr_html_(self): return 'x' * (20 << 20)\n    def __repr__(self): return 'a'\ndisplay(A())"
        self.assertNotIn("text/html", self.run_well(code).displays[0])

    def test_between_runs_they_wait(self):
        self.run_well(
            "import os, threading, time\ndef late():\n    while not os.path.exists('between'): time.sleep(0.01)\n    display('late')\n    os.mkdir('shown')\nt = threading.Thread(target=late); t.start()"
        )
        self.make("between")
        self.there("shown")
        self.assertEqual(self.run_well("t.join()").displays, [{"text/plain": "'late'"}])

    def test_in_a_forked_process(self):
        code = "import os\nif os.fork() == 0:\n    try: display(1)\n    finally: os._exit(0)\nos.wait()\ndisplay(2)"
        self.assertEqual(self.run_well(code).displays, [{"text/plain": "2"}])


class Libraries(KernelCase):
    def setUp(self):
        need("numpy", "pandas", "matplotlib")
        super().setUp()

    def test_figures(self):
        self.run_well("import matplotlib.pyplot as plt")
        result = self.run_well("plt.plot([1, 2]);")
        self.assertEqual(len(result.displays), 1)
        self.assertTrue(is_png(result.displays[0]))
        self.assertEqual(self.run_well("plt.get_fignums()").value, [])
        result = self.run_well(
            "plt.plot([1])\nplt.show()\nprint('after')\nplt.figure()\nplt.plot([2])\nplt.figure()\nplt.bar([1], [2]);"
        )
        self.assertEqual((len(result.displays), result.stderr), (3, ""))

    def test_ways_to_show(self):
        for code in (
            "import matplotlib.pyplot as plt\nfig, ax = plt.subplots()\nax.plot([1])\nfig.show();",
            "fig, ax = plt.subplots()\nfig", "fig, ax = plt.subplots()\ndisplay(fig)",
            "import matplotlib\nmatplotlib.use('Agg')\nplt.plot([1]); plt.show()",
            "from matplotlib.figure import Figure\nf = Figure()\nf.subplots()\nf", "plt.plot([1])\nplt.savefig('x.png');",
        ):  # fmt: skip
            with self.subTest(code):
                result = self.run_well(code)
                self.assertEqual((len(result.displays), result.stderr), (1, ""))
                self.assertTrue(is_png(result.displays[0]))

    def test_figures_of_a_run_that_failed(self):
        result = self.run_code("import matplotlib.pyplot as plt\nplt.plot([1])\n1 / 0")
        self.assertEqual((len(result.displays), result.error["type"]), (1, "ZeroDivisionError"))

    def test_figures_that_cannot_be_drawn(self):
        result = self.run_well("import matplotlib.pyplot as plt\nplt.title('$\\\\bad{$')\n5")
        self.assertIn("a figure cannot be shown", result.stderr)
        self.assertEqual(result.value, 5)
        self.assertEqual(self.run_well("6").displays, [])

    def test_empty_figures_are_not_shown(self):
        self.assertEqual(self.run_well("import matplotlib.pyplot as plt\nplt.figure();").displays, [])

    def test_the_backend_has_no_windows(self):
        self.assertEqual(self.value_of("import matplotlib\nmatplotlib.get_backend().lower()"), "agg")

    def test_frames(self):
        result = self.run_well("import pandas as pd\npd.DataFrame({'a': [1]})")
        self.assertIn("<table", result.displays[0]["text/html"])
        self.assertEqual(result.displays[0]["text/plain"], result.text)
        self.assertEqual(result.value, [{"a": 1}])
        self.assertEqual(self.run_well("pd.Series([1])").displays, [])

    def test_images(self):
        need("PIL")
        result = self.run_well("from PIL import Image\nimage = Image.new('RGB', (2, 2))\nimage.show()\nimage")
        self.assertEqual([is_png(data) for data in result.displays], [True, True])
