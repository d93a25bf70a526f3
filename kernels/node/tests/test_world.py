"""What a run has around it: streams, arguments, tools, exits, interrupts."""

import os
import signal
import time
import unittest

from harness import BEGUN, GUARD, kernel


class Streams(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.k = cls.enterClassContext(kernel())

    def test_order_and_completeness(self):
        self.k.run("console.log('a'); process.stdout.write('b\\n'); require('child_process').execSync('echo c', { stdio: 'inherit' });"
                   "require('fs').writeSync(1, 'd\\n'); console.log('%s is %d', 'e', 5)")
        self.assertEqual(self.k.stdout, "a\nb\nc\nd\ne is 5\n")

    def test_the_rest_of_console(self):
        self.k.run("console.table([{ a: 1 }]); console.group('g'); console.info('in'); console.groupEnd(); console.error('e'); console.warn('w');"
                   "console.assert(false, 'as'); console.dir({ d: 1 }); console.count(); console.time('t')")
        self.assertIn("│ (index) │ a │", self.k.stdout)
        self.assertIn("g\n  in\n{ d: 1 }\ndefault: 1\n", self.k.stdout)
        self.assertEqual(self.k.stderr, "e\nw\nAssertion failed: as\n")

    def test_much_output(self):
        self.k.run("for (let i = 0; i < 20000; i++) console.log('line ' + i); process.stdout.write('x'.repeat(3e6))")
        self.assertEqual(len(self.k.stdout), sum(len(f"line {i}\n") for i in range(20000)) + 3000000)

    def test_replaced_write_is_used(self):
        self.assertEqual(self.k.value("const got = [], old = process.stdout.write; process.stdout.write = (t) => got.push(t); console.log('x');"
                                      "process.stdout.write = old; got"), ["x\n"])

    def test_ended_stdout_comes_back(self):
        self.k.run("process.stdout.end('bye\\n')")
        self.assertEqual(self.k.stdout, "bye\n")
        self.k.run("console.log('again')")
        self.assertEqual(self.k.stdout, "again\n")

    def test_output_survives_a_kill(self):
        with kernel() as k:
            k.start("console.log('last words'); process.kill(process.pid, 'SIGKILL')")
            self.assertEqual(k.wait(), -signal.SIGKILL)
            self.assertEqual(k.stdout, "last words\n")

    def test_no_input(self):
        self.assertEqual(self.k.value("require('fs').readFileSync(0, 'utf8')"), "")
        self.assertEqual(self.k.value("let all = ''; for await (const c of process.stdin) all += c; all"), "")

    def test_text_input(self):
        stdin = {"text": "one\ntwo é\n"}
        self.assertEqual(self.k.value("require('fs').readFileSync(0, 'utf8')", stdin=stdin), stdin["text"])
        self.assertEqual(self.k.value("require('fs').readFileSync('/dev/stdin', 'utf8')", stdin=stdin), stdin["text"])
        self.assertEqual(self.k.value("let text = ''; for await (const c of process.stdin) text += c; text", stdin=stdin), stdin["text"])
        self.assertEqual(self.k.value("const lines = []; for await (const l of require('readline').createInterface({ input: process.stdin })) lines.push(l); lines",
                                      stdin=stdin), ["one", "two é"])
        self.assertEqual(self.k.value("require('child_process').execSync('cat', { stdio: ['inherit', 'pipe'] }).toString()", stdin=stdin), stdin["text"])
        self.assertEqual(self.k.value("require('fs').readFileSync(0, 'utf8')"), "")

    def test_live_input(self):
        self.k.start("const heard = []; for await (const c of process.stdin.setEncoding('utf8')) heard.push(c); heard.join('')", stdin={"live": True})
        self.k.send(op="input", data="a", end=False)
        time.sleep(0.05)
        self.k.send(op="input", data="bé", end=True)
        self.assertEqual(self.k.finish()["value"], "abé")

    def test_live_input_read_synchronously(self):
        self.k.start("console.log('asking'); const b = Buffer.alloc(3); const n = require('fs').readSync(0, b); b.toString('utf8', 0, n) + '|' + require('fs').readFileSync(0, 'utf8')",
                     stdin={"live": True})
        while self.k.stdout != "asking\n":
            self.assertTrue(self.k.pump(GUARD))
        self.k.send(op="input", data="abcde", end=False)
        self.k.send(op="input", data="f", end=True)
        self.assertEqual(self.k.finish()["value"], "abc|def")
        self.assertEqual(self.k.value("require('fs').readFileSync(0, 'utf8')"), "")


class Around(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.k = cls.enterClassContext(kernel())

    def test_arguments_and_environment(self):
        self.k.send(op="setup", env={"GIVEN": "yes", "PATH": "/usr/bin:/bin"}, imports=None, files=True)
        self.assertEqual(self.k.value("[process.argv.slice(2), process.env]", args=["-a", "b c"]), [["-a", "b c"], {"GIVEN": "yes", "PATH": "/usr/bin:/bin"}])
        self.assertEqual(self.k.value("process.argv.slice(2)"), [])

    def test_variables_that_come_later(self):
        with kernel() as k:
            k.run("process.env.MINE = 'm'")
            k.send(op="env", env={"A": "b"})
            self.assertEqual(k.value("[process.env.A, process.env.MINE, require('child_process').execSync('echo $A').toString()]"), ["b", "m", "b\n"])
            k.run("process.env = new Proxy({}, { set() { throw new Error('no') } })")
            k.send(op="env", env={"A": "c"})
            self.assertEqual(k.value("1 + 1"), 2)

    def test_globals_with_forms_that_json_lacks(self):
        forms = {
            "b": {"$bytes": "/wA="}, "n": {"$int": str(2**70)}, "f": [{"$float": "inf"}, {"$float": "nan"}],
            "d": {"$dict": [[1, "a"], ["k", {"$bytes": "YQ=="}]]}, "deep": {"x": [{"y": {"$bytes": "YQ=="}}]},
        }
        code = "[Buffer.isBuffer(b) && b[0] === 255 && b.length === 2, n === 2n ** 70n, f[0] === Infinity && f[1] !== f[1], d.get(1), `${d.get('k')}`, `${deep.x[0].y}`]"
        self.assertEqual(self.k.value(code, globals=forms), [True, True, True, "a", "a", "a"])
        odd = [
            {"$bytes": "aGVsbG8_-w=="}, {"$bytes": "!!"}, {"$bytes": "YQ==junk"}, {"$bytes": "YQ"}, {"$int": "1_000"}, {"$int": "0x10"}, {"$int": " 5 "},
            {"$bytes": 5}, {"$int": "x"}, {"$int": 5}, {"$float": "1"}, {"$dict": 5}, {"$dict": [[1]]}, {"$other": [1]}, {"$int": "1", "b": 2},
        ]
        self.assertEqual(self.k.value("odd.map((each) => Object.keys(each)[0])", globals={"odd": odd}), [list(each)[0] for each in odd])

    def test_globals(self):
        self.assertEqual(self.k.value("data.items.map(x => x * 2)", globals={"data": {"items": [1, 2]}}), [2, 4])
        self.assertTrue(self.k.value("data instanceof Object && Array.isArray(data.items) && data.items instanceof Array"))
        self.assertEqual(self.k.value("const data = 1; data"), 1)
        self.assertEqual(self.k.value("data", globals={"data": 7}), 7)
        self.assertEqual(self.k.value("data += 1; data"), 8)

    def test_tools(self):
        tools = {"add": lambda a, b: {"value": a + b}, "echo": lambda *a: {"value": list(a)}}
        self.assertEqual(self.k.value("const [s, e] = await Promise.all([add(1, 2), echo({ x: [1n, 2] }, null)]); [s, e]", tools=tools),
                         [3, [{"x": [1, 2]}, None]])
        self.assertEqual([c["call"] for c in self.k.calls], [1, 2])
        self.assertEqual(self.k.value("typeof add"), "undefined")

    def test_errors_of_tools(self):
        tools = {"fail": lambda: {"error": {"type": "KeyError", "message": "'k'"}}}
        self.assertEqual(self.k.value("try { await fail() } catch (e) { [e.name, e.message, e instanceof Error] }\nlet r; try { await fail() } catch (e) { r = [e.name, e.message, e instanceof Error] }; r",
                                      tools=tools), ["KeyError", "'k'", True])
        done = self.k.run("\nawait fail()", tools=tools)
        self.assertEqual((done["error"]["type"], done["error"]["message"]), ("KeyError", "'k'"))
        done = self.k.run("const c = []; c.push(c); await fail(c)", tools=tools)
        self.assertEqual((done["error"]["type"], self.k.calls), ("TypeError", []))

    def test_tools_stay_until_others_are_given(self):
        self.k.run("1", tools={"stays": lambda: None})
        self.assertEqual(self.k.value("typeof stays", tools_kept=True), "function")

    def test_calls_that_are_open_at_the_end_fail(self):
        done = self.k.run("globalThis.late = slow().catch(e => e.message); slow(); 1", tools={"slow": lambda: None})
        self.assertTrue(done["ok"], done)
        self.assertIn("was over before", self.k.value("await late"))
        self.assertEqual(self.k.stderr, "")

    def test_answers_to_other_runs_are_ignored(self):
        self.k.start("await ask()", tools=[{"name": "ask", "doc": "", "parameters": [], "async": True}])
        self.assertEqual(self.k.receive()["op"], "call")
        self.k.send(op="answer", id="another", call=1, value="wrong")
        self.k.send(op="answer", id=self.k.id, call=1, value="right")
        self.assertEqual(self.k.finish()["value"], "right")

    def test_rules_for_imports_are_refused(self):
        with kernel() as k:
            k.send(op="setup", env=None, imports=["fs"], files=True)
            done = k.run("require('os')")
            self.assertFalse(done["ok"])
            self.assertIn("not enforced", done["error"]["message"])

    def test_tools_between_runs_fail(self):
        self.k.run("""
            globalThis.outcome = new Promise((settled) => {
              const look = setInterval(() => {
                if (!require('fs').existsSync('between')) return
                clearInterval(look)
                tool().then(settled, (error) => settled(error.message))
                require('fs').mkdirSync('asked')
              }, 5)
            })
            1""", tools={"tool": lambda: None})
        self.k.make("between")
        self.k.there("asked")
        self.assertIn("only while a run", self.k.value("await outcome", tools={"tool": lambda: None}))

    def test_exit(self):
        done = self.k.run("let alive = 1; process.exit(3); alive = 2")
        self.assertEqual((done["exit_code"], done["ok"], done["error"]), (3, False, None))
        done = self.k.run("try { process.exit() } catch { alive = 3 } finally { alive = 4 }")
        self.assertEqual((done["exit_code"], done["ok"]), (0, True))
        self.assertEqual(self.k.run("await 1; setTimeout(() => process.exit(5), 5); await new Promise(() => {})")["exit_code"], 5)
        self.assertEqual(self.k.run("process.exitCode = 4; process.exit()")["exit_code"], 4)
        self.assertEqual(self.k.run("[3, 1].sort(() => process.exit(6))")["exit_code"], 6)
        self.assertEqual(self.k.value("process.exitCode = undefined; alive"), 1)

    def test_last_run_ends_like_a_script(self):
        with kernel() as k:
            done = k.run("process.on('exit', (c) => console.log('exit', c)); setTimeout(() => console.log('timer'), 50); 9", last=True)
            self.assertEqual(done["value"], 9)
            self.assertEqual((k.wait(), k.stdout, k.stderr), (0, "timer\nexit 0\n", ""))
        with kernel() as k:
            self.assertEqual(k.run("process.on('exit', (c) => console.log('exit', c)); process.exit(7); console.log('no')", last=True)["exit_code"], 7)
            self.assertEqual((k.wait(), k.stdout, k.stderr), (7, "exit 7\n", ""))
        with kernel() as k:
            self.assertEqual(k.run("throw new Error('x')", last=True)["error"]["message"], "x")
            self.assertEqual(k.wait(), 1)
        with kernel() as k:
            self.assertTrue(k.run("setTimeout(() => { throw new Error('late') }, 5)", last=True)["ok"])
            self.assertEqual(k.wait(), 1)
            self.assertIn("late", k.stderr)
        with kernel() as k:
            self.assertTrue(k.run("process.exitCode = 8", last=True)["ok"])
            self.assertEqual(k.wait(), 8)

    def test_end_of_the_channel_ends_the_kernel(self):
        with kernel() as k:
            k.run("setInterval(() => {}, 1000)")
            k.channel.close()
            k.channel = None
            self.assertEqual(k.wait(), 0)


class Interrupts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.k = cls.enterClassContext(kernel())

    def interrupted(self, code, **fields):
        self.k.value("globalThis.state = 'kept'")
        self.k.start(BEGUN + code, **fields)
        self.k.begun()
        self.k.interrupt()
        done = self.k.finish()
        self.assertTrue(done["interrupted"], done)
        self.assertEqual((done["ok"], done["error"]["type"]), (False, "Interrupted"))
        self.assertEqual(self.k.value("state"), "kept", code)
        self.assertEqual(self.k.value("await new Promise(r => setTimeout(r, 5, 'timers work'))"), "timers work")
        self.k.run("console.log('heard'); console.error('heard too')")
        self.assertEqual((self.k.stdout, self.k.stderr), ("heard\n", "heard too\n"), code)

    def test_busy_code(self):
        for code in ("for (;;);", "await 1; for (;;);", "console.log('x'); console.error('y'); for (;;);", "setTimeout(() => { for (;;); }, 5); await new Promise(() => {})",
                     "setImmediate(() => { for (;;); }); await new Promise(() => {})",
                     "for (;;) { try { for (;;); } catch {} finally { for (;;); } }",
                     "for (;;) await null", "const f = () => process.nextTick(f); f(); await new Promise(() => {})",
                     "/(a+)+$/.test('a'.repeat(50) + 'b')", "Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0)",
                     "for (;;) console.log('x')", "require('fs').readFile('/etc/hostname', () => { for (;;); }); await new Promise(() => {})",
                     "({ get never() { for (;;); } })", "({ toJSON() { for (;;); } })", "process.on('exit', () => {}); for (;;) JSON.stringify([1])"):
            with self.subTest(code):
                self.interrupted(code)

    def test_waiting_code(self):
        for code in ("await new Promise(() => {})", "await new Promise(r => setTimeout(r, 1e6))", "const t = setInterval(() => {}, 1); await new Promise(() => {})"):
            with self.subTest(code):
                self.interrupted(code)

    def test_with_context_tracking_on(self):
        self.interrupted("const als = new (require('async_hooks').AsyncLocalStorage)(); als.run(1, () => setTimeout(() => { for (;;); }, 5)); await new Promise(() => {})")
        self.interrupted("als.run(2, () => { for (;;); })")
        self.assertEqual(self.k.value("als.run(3, () => als.getStore())"), 3)

    def test_waiting_for_a_tool_and_for_input(self):
        self.interrupted("await slow()", tools=[{"name": "slow", "doc": "", "parameters": [], "async": True}])
        self.interrupted("require('fs').readFileSync(0)", stdin={"live": True})

    def test_listeners_of_the_code_come_first(self):
        self.k.start("let hits = 0; process.on('SIGINT', () => hits++); require('fs').writeSync(1, 'begun'); while (hits < 1) await new Promise(r => setTimeout(r, 5)); process.removeAllListeners('SIGINT'); hits")
        self.k.begun()
        self.k.interrupt()
        self.assertEqual(self.k.finish()["value"], 1)
        self.interrupted("for (;;);")

    def test_what_the_code_sends_to_itself(self):
        self.k.value("globalThis.state = 'kept'")
        for pid in ("process.pid", "`${process.pid}`"):
            done = self.k.run(f"try {{ process.kill({pid}, 'SIGINT') }} finally {{ state = 'lost' }}")
            self.assertEqual((done["ok"], done["error"]["type"], self.k.stderr), (False, "Interrupted", ""))
        code = "let own = 0; process.on('SIGINT', () => own++); process.kill(process.pid, 2); while (own < 1) await new Promise(r => setTimeout(r, 5)); process.removeAllListeners('SIGINT'); own"
        self.assertEqual(self.k.value(code), 1)
        self.assertEqual(self.k.value("process.kill(process.pid, 0)"), True)
        self.assertEqual(self.k.run("process.kill(process.pid, 'NONE')")["error"]["type"], "TypeError")
        # What nothing listens to and what ends no process: the watcher must still be there afterwards.
        for target in ("process.pid", "0"):
            done = self.k.run(f"for (let i = 0; i < 200; i++) process.kill({target}, 'SIGWINCH'); process.exit(4)")
            self.assertEqual((done["exit_code"], self.k.stderr), (4, ""))
        self.interrupted("for (;;) process.kill(process.pid, 'SIGWINCH')")
        self.interrupted("for (;;);")
        with kernel() as k:
            k.start("process.kill(process.pid, 'SIGTERM')")
            self.assertEqual((k.wait(), k.stderr), (-15, ""))
        with kernel() as k:
            self.assertEqual(k.run("setTimeout(() => console.log('no'), 50); process.kill(process.pid, 'SIGINT')", last=True)["exit_code"], 130)
            self.assertEqual((k.wait(), k.stdout, k.stderr), (130, "", ""))

    def test_between_runs_it_does_nothing(self):
        for _ in range(5):
            self.k.interrupt(0.02)
        time.sleep(0.1)
        self.assertEqual(self.k.value("21 * 2"), 42)

    def test_the_watcher_says_nothing(self):
        with kernel() as fresh:
            fresh.send(op="run", id="a", code="await new Promise(r => setTimeout(r, 200))", name="run.js", args=[], globals={}, tools=[], stdin=None, last=False, value_bytes=1)
            fresh.id = "a"
            self.assertTrue(fresh.finish()["ok"])
            self.assertEqual((fresh.stdout, fresh.stderr), ("", ""))

    def test_a_storm_of_signals(self):
        self.k.start(BEGUN + "for (;;);")
        self.k.begun()
        for _ in range(200):
            os.kill(self.k.process.pid, signal.SIGINT)
        self.assertTrue(self.k.finish()["interrupted"])
        time.sleep(0.2)
        self.assertEqual(self.k.value("1"), 1)

    def test_ticks_that_never_end_are_over_after_it(self):
        for code in ("const f = () => { process.nextTick(f); for (const end = Date.now() + 2; Date.now() < end;); }; f(); await new Promise(() => {})",
                     "const f = () => Promise.resolve().then(() => process.nextTick(f)); f(); await new Promise(() => {})"):
            with self.subTest(code):
                for _ in range(5):
                    self.k.start(BEGUN + code)
                    self.k.begun()
                    self.k.interrupt(0.03)
                    self.assertTrue(self.k.finish()["interrupted"])
                    self.assertEqual(self.k.value("await new Promise(r => setTimeout(r, 1, 'the loop turns'))"), "the loop turns")

    def test_ticks_are_those_of_node(self):
        self.assertEqual(self.k.value("const seen = []; process.nextTick((...given) => seen.push(...given), 1, 2); seen.push(0); await 1; await 2; seen"), [0, 1, 2])
        self.assertEqual(self.k.value("(() => { try { process.nextTick(7) } catch (error) { return error.code } })()"), "ERR_INVALID_ARG_TYPE")
        self.assertEqual(self.k.run("process.nextTick(() => { throw new Error('from a tick') }); await new Promise(() => {})")["error"]["message"], "from a tick")

    def test_many_in_a_row(self):
        for _ in range(30):
            self.k.start(BEGUN + "globalThis.rounds = (globalThis.rounds || 0) + 1; for (;;);")
            self.k.begun()
            self.k.interrupt(0.03)
            self.assertTrue(self.k.finish()["interrupted"])
        self.assertEqual(self.k.value("rounds"), 30)


if __name__ == "__main__":
    unittest.main()
