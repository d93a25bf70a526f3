"""State, declarations, values and errors of runs."""

import unittest

from harness import kernel


class Case(unittest.TestCase):
    """Tests that share nothing but the started process; names are their own."""

    @classmethod
    def setUpClass(cls):
        cls.k = cls.enterClassContext(kernel())

    def value(self, code, **fields):
        return self.k.value(code, **fields)

    def error(self, code, **fields):
        done = self.k.run(code, **fields)
        self.assertFalse(done["ok"], done)
        return done["error"]


class State(Case):
    def test_value_of_the_last_expression(self):
        done = self.k.run("let first = 20; first * 2 + 2")
        self.assertEqual((done["value"], done["value_text"], done["ok"]), (42, "42", True))

    def test_a_statement_has_no_value(self):
        for code in ("let s1 = 1", "if (true) { 5 }", "undefined", "", "// only a comment", "function s2() {}"):
            done = self.k.run(code)
            self.assertTrue(done["ok"], code)
            self.assertNotIn("value", done, code)
            self.assertNotIn("value_text", done, code)

    def test_null_is_a_value(self):
        done = self.k.run("null")
        self.assertIn("value", done)
        self.assertIsNone(done["value"])

    def test_state_stays(self):
        self.k.run("const a1 = 1; let a2 = 2; var a3 = 3; function a4() { return 4 } class A5 { five() { return 5 } }; a6 = 6")
        self.assertEqual(self.value("[a1, a2, a3, a4(), new A5().five(), a6]"), [1, 2, 3, 4, 5, 6])

    def test_every_kind_may_be_declared_again_as_any_other(self):
        kinds = ["const again = K", "let again = K", "var again = K", "function again() { return K }", "class again { static k = K }",
                 "const { again } = { again: K }", "let [again] = [K]", "import again from 'node:path'"]
        for before in kinds:
            for after in kinds:
                with self.subTest(before=before, after=after):
                    self.assertTrue(self.k.run(before.replace("K", "1"))["ok"])
                    done = self.k.run(after.replace("K", "2") + "\ntypeof again")
                    self.assertTrue(done["ok"], done)
        self.k.run("const again = 1")
        self.assertEqual(self.value("let again = 5; again += 1; again"), 6)

    def test_older_functions_see_the_new_declaration(self):
        self.k.run("const rate = 2; function price(x) { return x * rate }")
        self.assertEqual(self.value("const rate = 3; price(10)"), 30)

    def test_constants_are_constant(self):
        for code in ("const fixed = 1; fixed = 2", "fixed = 3", "fixed++", "[fixed] = [1]", "({ fixed } = { fixed: 5 })", "for (fixed of [1]);",
                     "(() => { fixed = 9 })()"):
            error = self.error(code)
            self.assertEqual((error["type"], error["message"]), ("TypeError", "Assignment to constant variable."), code)
        self.assertEqual(self.value("(() => { let fixed = 1; fixed = 2; return fixed })() + fixed"), 3)
        self.assertEqual(self.value("{ let fixed = 1; fixed = 7 }\n(function (fixed) { fixed = 4; return fixed })(1) + fixed"), 5)

    def test_functions_are_there_before_their_declaration(self):
        self.assertEqual(self.value("const early = hoisted(2)\nfunction hoisted(n) { return n * other() }\nfunction other() { return 21 }\nearly"), 42)
        self.assertEqual(self.value("hoisted.name + hoisted.length"), "hoisted1")

    def test_a_failed_run_keeps_what_came_before_the_failure(self):
        self.error("let kept = 1; const never = (() => { throw new Error('x') })()")
        self.assertEqual(self.value("kept"), 1)
        self.assertEqual(self.value("const never = 2; never"), 2)

    def test_var_in_loops_and_blocks(self):
        self.assertEqual(self.value("for (var i = 0, n = 3; i < n; i++) { var seen = i }\ni + seen"), 5)
        self.assertEqual(self.value("for (var key in { only: 1 });\nfor (var of_ of [7]);\nif (true) var lone = 1\nkey + of_ + lone"), "only71")
        self.assertEqual(self.value("var seen; seen"), 2)

    def test_names_of_functions_and_classes(self):
        self.assertEqual(self.value("const arrow = () => 1, { Inner = class {} } = {};\n[arrow.name, Inner.name]"), ["arrow", "Inner"])

    def test_strict_mode_is_the_runs_own(self):
        self.assertEqual(self.error("'use strict'; undeclared_one = 1")["type"], "ReferenceError")
        self.assertTrue(self.value("'use strict'\nfunction strictly() { return this === undefined }\nstrictly()"))
        self.assertEqual(self.value("undeclared_two = 2"), 2)

    def test_statements_without_semicolons(self):
        self.assertEqual(self.value("let b1 = 1\nlet b2 = b1\nclass B3 {}\nconst b4 = [b1, b2]\nb4.length"), 2)
        self.assertEqual(self.value("const c1 = 5\n;[1, 2].map(x => x + c1)"), [6, 7])

    def test_literals_that_look_like_code(self):
        self.assertEqual(self.value("const text = `const x = ${'let y'} // }`, re = /const \\/ [/{]/g // let z\ntext + re.source"),
                         "const x = let y // }const \\/ [/{]")

    def test_an_object_alone_is_an_object(self):
        self.assertEqual(self.value("{a: 1, b: {c: [2]}}"), {"a": 1, "b": {"c": [2]}})
        self.assertEqual(self.value("{ let block = 3; block }\n1"), 1)

    def test_return_at_the_top(self):
        self.assertEqual(self.value("const r1 = 5\nif (r1 > 1) return r1 * 2\n'not reached'"), 10)
        self.assertEqual(self.value("r1"), 5)
        self.assertNotIn("value", self.k.run("return"))

    def test_last_run_is_a_script(self):
        with kernel() as k:
            done = k.run("const x = 6\nfunction f() { return x }\nf() * 7", last=True)
            self.assertEqual(done["value"], 42)
            self.assertEqual(k.wait(), 0)


class Asynchronous(Case):
    def test_top_level_await(self):
        self.assertEqual(self.value("const late = await new Promise(r => setTimeout(r, 5, 7)); late + 1"), 8)
        self.assertEqual(self.value("late"), 7)

    def test_for_await(self):
        self.assertEqual(self.value("let sum = 0; for await (const n of (async function* () { yield 1; yield 2 })()) sum += n\nsum"), 3)

    def test_a_promise_at_the_end_is_waited_for(self):
        done = self.k.run("async function main() { await null; console.log('in main'); return 8 }\nmain()")
        self.assertEqual((done["value"], self.k.stdout), (8, "in main\n"))
        self.assertEqual(self.error("(async () => { throw new RangeError('no') })()")["type"], "RangeError")

    def test_timers_live_on(self):
        self.k.run("globalThis.ticks = 0; globalThis.timer = setInterval(() => ticks++, 1)")
        code = "await new Promise(r => { const look = () => ticks > 2 ? r() : setTimeout(look, 5); look() }); clearInterval(timer); ticks"
        self.assertGreater(self.value(code), 2)

    def test_rejections_that_nobody_handles(self):
        error = self.error("Promise.reject(new TypeError('lost'));\n5")
        self.assertEqual((error["type"], error["message"], error["line"]), ("TypeError", "lost", 1))
        self.assertEqual(self.error("Promise.reject(3); await new Promise(() => {})")["type"], "UnhandledPromiseRejection")

    def test_an_exception_in_a_timer_is_the_runs_error(self):
        error = self.error("setTimeout(() => {\n  throw new Error('in timer') }, 5); await new Promise(r => setTimeout(r, 5000))")
        self.assertEqual((error["message"], error["line"], error["column"]), ("in timer", 2, 9))

    def test_an_exception_between_runs_is_told_on_stderr(self):
        self.assertTrue(self.k.run("setTimeout(() => { throw new Error('afterwards') }, 20); 1")["ok"])
        while "afterwards" not in self.k.stderr:
            self.assertTrue(self.k.pump(20))
        self.assertEqual(self.value("3"), 3)

    def test_listeners_of_the_code_take_what_is_uncaught(self):
        self.assertEqual(self.value("""
            const caught = []
            const listen = (e) => caught.push(e.message)
            process.on('uncaughtException', listen)
            setTimeout(() => { throw new Error('mine') })
            await new Promise(r => setTimeout(r, 20))
            process.off('uncaughtException', listen)
            caught"""), ["mine"])
        self.assertEqual(self.value("""
            process.once('unhandledRejection', (e) => caught.push('rejected ' + e))
            Promise.reject(4)
            await new Promise(r => setTimeout(r, 5))
            caught.pop()"""), "rejected 4")


class Modules(Case):
    def test_require_and_dirname(self):
        self.assertEqual(self.value("const fs = require('fs'); fs.writeFileSync('near.js', 'module.exports = { here: __dirname }');"
                                    "[require('./near').here === __dirname, __dirname === process.cwd(), require('path').basename(__filename)]"),
                         [True, True, "run.js"])

    def test_main_module(self):
        self.assertTrue(self.value("require.main === module"))

    def test_dynamic_import(self):
        self.assertEqual(self.value("require('fs').writeFileSync('mod.mjs', 'export const n = 4; export default 5');"
                                    "const m = await import('./mod.mjs'); m.n + m.default"), 9)
        self.assertEqual(self.value("(await import('node:path')).basename('/a/b')"), "b")
        self.assertEqual(self.k.stderr, "")

    def test_static_imports(self):
        self.assertEqual(self.value("import os, {\n  EOL as end,\n  platform\n} from 'node:os'\nimport * as all from 'path'\nimport 'fs'\n"
                                    "[os.EOL === end, typeof platform, all.basename('/x/y')]"), [True, "function", "y"])
        self.assertEqual(self.error("import { a } from 'no-such-thing'\n")["type"], "Error")
        self.assertEqual(self.error("import x from 'fs'\n\nnope()")["line"], 3)

    def test_exports_are_declarations(self):
        self.assertEqual(self.value("export const e1 = 1\nexport function e2() { return 2 }\nexport default class E3 {}\nexport { e2 as other }\ne1 + e2()"), 3)

    def test_import_meta(self):
        self.assertTrue(self.value("import.meta.url.startsWith('file://') && import.meta.dirname === __dirname"))


class Errors(Case):
    def test_own_lines_only(self):
        error = self.error("function outer() {\n  inner()\n}\nfunction inner() {\n  [1].forEach(() => { null.x })\n}\nouter()", name="mine.js")
        self.assertEqual((error["type"], error["line"], error["column"]), ("TypeError", 5, 28))
        self.assertEqual(error["source"], "  [1].forEach(() => { null.x })")
        self.assertIn("    at outer (mine.js:2:3)\n", error["traceback"])
        self.assertIn("    at mine.js:7:1\n", error["traceback"])
        self.assertNotIn("node:", error["traceback"])
        self.assertNotIn("session.js", error["traceback"])
        self.assertEqual(self.k.stderr, "Uncaught " + error["traceback"])

    def test_errors_that_the_code_shows(self):
        shows = "const shown = new Error('s'); shown.code = 3; console.error(shown); console.log({ shown }); console.trace('t'); shown"
        done = self.k.run(shows, name="shows.js")
        for text in (self.k.stderr, self.k.stdout, done["value_text"]):
            self.assertIn("    at shows.js:1:", text)
            for own in ("session.js", "program.js", "node:vm"):
                self.assertNotIn(own, text)
        self.assertIn(" {\n  code: 3\n}\n", self.k.stderr)

    def test_columns_are_those_of_the_code(self):
        self.assertEqual(self.error("const p = 1, q = null.x")["column"], 23)
        self.assertEqual(self.error("let r, s = null.x")["column"], 17)
        self.assertEqual(self.error("await 1; nope")["column"], 10)
        self.assertEqual(self.error("function one() { nope } one()")["column"], 18)
        self.assertEqual(self.error("class T { static x = nope() }")["column"], 22)

    def test_functions_of_earlier_runs_keep_their_place(self):
        self.k.run("\nfunction earlier() {\n  throw new Error('old')\n}", name="before.js")
        error = self.error("earlier()", name="now.js")
        self.assertIn("at earlier (before.js:3:9)", error["traceback"])
        self.assertEqual((error["line"], error["source"]), (1, "earlier()"))
        error = self.error("setTimeout(earlier); await new Promise(() => {})", name="timer.js")
        self.assertEqual((error["line"], error["source"]), (None, None))
        self.assertIn("before.js:3", error["traceback"])

    def test_runs_of_the_same_name_are_told_apart(self):
        self.k.run("\n\nfunction twin() { null.x }", name="twin.js")
        error = self.error("const a = 1\nconst b = 2\nsetTimeout(() => twin()); await new Promise(() => {})", name="twin.js")
        self.assertIn("    at twin (twin.js:3:24)\n", error["traceback"])
        self.assertEqual((error["line"], error["source"]), (3, "setTimeout(() => twin()); await new Promise(() => {})"))
        self.k.run("setTimeout(twin, 50)\n0", name="twin.js")
        error = self.error("await new Promise(() => {})\n// two\n// three", name="twin.js")
        self.assertEqual((error["line"], error["column"], error["source"]), (None, None, None))
        self.assertIn("twin.js:3\nfunction twin() { null.x }\n                       ^\n", error["traceback"])
        done = self.k.run("let caught; try { twin() } catch (e) { console.log(e); console.error(e.stack); caught = e }\ncaught", name="twin.js")
        for text in (self.k.stderr, self.k.stdout):
            self.assertNotIn("#", text)
            self.assertRegex(text, r"at twin \(twin\.js:3:\d+\)\n    at twin\.js:1:\d+\n")
        self.assertNotIn("#", done["value_text"])
        for code in ("1\n+(", "await 1\n+(", "1\nlet let"):
            error = self.error(code, name="twin.js")
            self.assertEqual((error["type"], error["line"], error["source"]), ("SyntaxError", 2, code.split("\n")[1]))
            self.assertNotIn("#", error["traceback"])

    def test_causes(self):
        error = self.error("throw new Error('top', { cause: new TypeError('middle', { cause: 'bottom' }) })")
        self.assertEqual(error["causes"], [{"type": "TypeError", "message": "middle"}, {"type": "Thrown", "message": "'bottom'"}])
        error = self.error("await Promise.any([Promise.reject(new RangeError('a')), Promise.reject(new Error('b'))])")
        self.assertEqual((error["type"], [c["type"] for c in error["causes"]]), ("AggregateError", ["RangeError", "Error"]))
        self.assertEqual(self.error("const loop = new Error('l'); loop.cause = loop; throw loop")["causes"], [])

    def test_types(self):
        self.assertEqual(self.error("class Mine extends Error {}; throw new Mine('m')")["type"], "Mine")
        self.assertEqual(self.error("throw Object.assign(new Error('n'), { name: 'Named' })")["type"], "Named")
        self.assertEqual(self.error("throw 5")["message"], "5")
        self.assertEqual(self.error("throw { code: 1 }")["message"], "{ code: 1 }")
        self.assertEqual(self.error("throw undefined")["type"], "Thrown")
        self.assertEqual(self.error("AbortSignal.abort().throwIfAborted()")["type"], "AbortError")
        self.assertEqual(self.error("require('./nothing')")["type"], "Error")

    def test_syntax_errors_have_a_place(self):
        for code, message, line, column in (
                ("let x1 = ;", "Unexpected token ';'", 1, 10),
                ("\n\n  foo(", "Unexpected end of input", 3, 7),
                ("let d1; let d1", "Identifier 'd1' has already been declared", 1, 13),
                ("await 1;\nlet = = 2", "Unexpected token '='", 2, 7),
                ("await fetch(", "Unexpected end of input", 1, 13),
                ("import fs from 'fs'\nlet z = ;", "Unexpected token ';'", 2, 9),
                ("const s = 'abc", "Invalid or unexpected token", 1, 11),
                ("x = /(/", "Invalid regular expression: /(/: Unterminated group", 1, 5)):
            error = self.error(code)
            self.assertEqual(error["type"], "SyntaxError", code)
            self.assertIn("nexpected" if "import" in code else message, error["message"], code)
            self.assertEqual((error["line"], error["column"]), (line, column), code)
        self.assertIn("^", error["traceback"])

    def test_nothing_of_a_run_with_a_syntax_error_happens(self):
        self.error("let before_error = 1; globalThis.happened = true; )")
        self.assertEqual(self.value("[typeof happened, typeof before_error]"), ["undefined", "undefined"])


if __name__ == "__main__":
    unittest.main()
