"""Code that works against its kernel: a right answer or a clean end, and never a hang."""

import contextlib
import json
import signal
import struct
import unittest

from harness import BEGUN, Ended, kernel


class StillRight(unittest.TestCase):
    """After each of these the kernel answers as if nothing had happened."""

    def check(self, code, ok=True, **fields):
        with kernel() as k:
            done = k.run(code, **fields)
            self.assertEqual(done["ok"], ok, done)
            after = k.run("const after = [1, { two: 2 }]; console.log('after'); await 1; after")
            self.assertEqual((after["ok"], after.get("value"), k.stdout), (True, [1, {"two": 2}], "after\n"), (after, k.stderr))
            failed = k.run("\nthrow new Error('own')")
            self.assertEqual((failed["error"]["message"], failed["error"]["line"]), ("own", 2))
        return done

    def test_replaced_json(self):
        self.check("JSON.stringify = () => '{\"op\":\"done\"}'; JSON.parse = () => { throw 1 }; 5")
        self.check("globalThis.JSON = null; 5")

    def test_replaced_bytes(self):
        with kernel() as k:
            k.run("Buffer.from = Buffer.alloc = Buffer.concat = () => { throw 1 }; for (const k of Object.getOwnPropertyNames(Buffer.prototype)) "
                  "try { Buffer.prototype[k] = () => { throw 2 } } catch {}; TextEncoder.prototype.encode = TextDecoder.prototype.decode = () => 'x'; 0")
            self.assertEqual(k.value("const u = new Uint8Array([1, 2, 3]); [u, 'é']"), [{"$bytes": "AQID"}, "é"])

    def test_replaced_methods_of_arrays_and_strings(self):
        with kernel() as k:
            k.run("""
            const types = [Array, String, RegExp, Map, Set, Uint8Array, Object.getPrototypeOf(Uint8Array), Date, Number], { ownKeys } = Reflect
            for (let t = 0; t < types.length; t++) {
              const keys = ownKeys(types[t].prototype)
              for (let at = 0; at < keys.length; at++) {
                if (keys[at] === 'constructor' || keys[at] === 'pop') continue
                try { Object.defineProperty(types[t].prototype, keys[at], { value() { throw new Error('replaced') }, configurable: true, writable: true }) } catch {}
              }
            }
            0""")
            self.assertEqual(k.value("const after = [1, { two: 2 }]; await 1; after"), [1, {"two": 2}])

    def test_replaced_promises(self):
        self.check("Promise.prototype.then = () => { throw 1 }; Promise.resolve = Promise.reject = null; 0")
        with kernel() as k:
            k.run("Object.defineProperty(Promise.prototype, 'constructor', { get() { throw new Error('species') } })")
            self.assertEqual(k.run("1 + 1")["value"], 2)

    def test_replaced_functions_of_functions(self):
        self.check("Function.prototype.call = Function.prototype.apply = Function.prototype.bind = () => { throw 1 }; Reflect.apply = null; 0")

    def test_polluted_prototypes(self):
        self.check("""
            const { defineProperty } = Object, N = (o) => Object.setPrototypeOf(o, null)
            for (const key of ['op', 'id', 'ok', 'value', 'stdin', 'last', 'get', 'set', 'cachedData', 'filename', 'importModuleDynamically',
                               'depth', 'timeout', 'displayErrors', 'code', 'text', 'live', 'exit', 'failed', 'interrupted', 'outcome'])
              defineProperty(Object.prototype, key, N({ configurable: true, get() { throw new Error('polluted ' + key) }, set(v) {
                defineProperty(this, key, N({ value: v, writable: true, configurable: true, enumerable: true })) } }))
            0""")

    def test_replaced_streams_and_console(self):
        with kernel() as k:
            self.assertTrue(k.run("process.stdout = null; process.stdin = 5; globalThis.console = null; 0")["ok"])
            self.assertEqual(k.run("require('fs').writeSync(1, 'fd'); 7")["value"], 7)
            self.assertEqual(k.stdout, "fd")

    def test_closed_output(self):
        with kernel() as k:
            self.assertTrue(k.run("require('fs').closeSync(1); require('fs').closeSync(2); require('fs').closeSync(0); console.log('x'); console.error('y'); 0")["ok"])
            self.assertEqual(k.run("console.log('x'); console.error('y'); 6", stdin={"text": "t"})["value"], 6)
            self.assertEqual((k.stdout, k.stderr), ("x\n", "y\n"))
            for code in ("require('fs').closeSync(1)", "require('fs').close(2, () => {}); await new Promise(r => setTimeout(r, 50))",
                         "for (const fd of [0, 1, 2]) require('fs').closeSync(fd); for (const _ of 'abcd') require('fs').openSync('/dev/null', 'w'); console.log('lost'); 0",
                         "require('fs').createWriteStream(null, {fd: 1}).end(); await new Promise(r => setTimeout(r, 50))",
                         "process.stdout.end(); process.stderr.destroy()", "process.stdout.destroy(); console.error('now'); 0"):
                with self.subTest(code):
                    self.assertTrue(k.run(code)["ok"])
                    self.assertNotIn("lost", k.stdout)
                    self.assertTrue(k.run("console.log('x'); console.error('y'); require('child_process').execSync('echo child', {stdio: 'inherit'}); 0")["ok"])
                    self.assertEqual((k.stdout, k.stderr), ("x\nchild\n", "y\n"))

    def test_replaced_timers_and_events(self):
        self.check("globalThis.setImmediate = globalThis.setTimeout = globalThis.queueMicrotask = () => { throw 1 };"
                   "process.nextTick = null; require('events').prototype.emit = () => { throw 2 }; require('events').prototype.once = null; 0")

    def test_replaced_parts_of_node(self):
        self.check("""
            const parts = ['fs', 'vm', 'util', 'net', 'path', 'worker_threads', 'inspector', 'stream', 'module'].map(require)
            for (const part of parts) {
              for (const key of Object.keys(part)) try { part[key] = () => { throw new Error('replaced ' + key) } } catch {}
            }
            0""")

    def test_all_globals_deleted(self):
        with kernel() as k:
            self.assertTrue(k.run("const { getOwnPropertyNames } = Object; for (const k of getOwnPropertyNames(globalThis)) if (k !== 'globalThis') delete globalThis[k]; 0")["ok"])
            self.assertEqual(k.run("const x = [1]; await 1; x")["value"], [1])
            self.assertEqual(k.run("Nope")["error"]["type"], "ReferenceError")

    def test_broken_stack_traces(self):
        for code in ("Error.stackTraceLimit = 0", "Error.prepareStackTrace = () => { throw new Error('no trace') }", "Error.prepareStackTrace = () => 5",
                     "Object.defineProperty(Error.prototype, 'name', { get() { throw 1 } })", "delete Error.captureStackTrace; Object.freeze(Error)"):
            with kernel() as k:
                k.run(code)
                self.assertFalse(k.run("null.x")["ok"], code)
                self.assertFalse(k.run("throw new RangeError('r')")["ok"], code)
                self.assertEqual(k.value("8"), 8)

    def test_listeners_removed(self):
        self.check("process.removeAllListeners(); 0")
        with kernel() as k:
            k.run("process.removeAllListeners('newListener'); process.on('SIGINT', () => {}); process.removeAllListeners('SIGINT')")
            k.start(BEGUN + "for (;;);")
            k.begun()
            k.interrupt()
            self.assertTrue(k.finish()["interrupted"])

    def test_listeners_that_throw(self):
        self.assertEqual(self.check("process.on('uncaughtException', () => { process.removeAllListeners('uncaughtException'); throw new Error('worse') }); "
                                    "setTimeout(() => { throw 1 }); await new Promise(r => setTimeout(r, 5000))", ok=False)["error"]["message"], "worse")

    def test_errors_that_fight_back(self):
        for code in ("throw { get stack() { throw 1 }, get message() { throw 2 } }",
                     "const e = new Error('x'); Object.defineProperty(e, 'message', { get() { throw 1 } }); Object.defineProperty(e, 'stack', { get() { throw 1 } }); throw e",
                     "throw new Proxy(new Error('p'), { get() { throw new Error('trap') }, getPrototypeOf() { throw 1 } })",
                     "const e = new Error('x'); e.stack = '    at ' + ' ('.repeat(200000) + ':1:1'; throw e",
                     "const e = new Error('m'.repeat(5e6)); throw e",
                     "const e = new AggregateError([]); e.errors = new Proxy([], { get() { throw 1 } }); throw e"):
            with self.subTest(code):
                self.check("{" + code + "}", ok=False)

    def test_values_that_fight_back(self):
        for code in ("const p = new Proxy(function () {}, { get: () => p, apply: () => p, ownKeys: () => [] }); p",
                     "new Proxy([], { get(t, k) { return k === 'length' ? 1e9 : 1 } })",
                     "new Proxy({}, { ownKeys: () => Array.from({ length: 1e5 }, (_, i) => 'k' + i), getOwnPropertyDescriptor: () => ({ enumerable: true, configurable: true }), get: () => 1 })",
                     "const endless = () => ({ get next() { return endless() } }); endless()",
                     "class M extends Map { forEach() { throw 1 } get size() { throw 1 } }; new M([[1, 2]])",
                     "const b = Buffer.alloc(4); Object.defineProperty(b, 'length', { value: 2 ** 40 }); b",
                     "Object.defineProperty([], 'length', { value: 2 ** 32 - 1 })",
                     "const s = { toString() { throw 1 }, valueOf() { throw 1 }, [Symbol.toPrimitive]() { throw 1 } }; s",
                     "async function f() { return { then(r) { r({ get then() { throw new Error('t') } }) } } }; 0"):
            with self.subTest(code):
                self.check(code)

    def test_stack_overflow(self):
        self.assertEqual(self.check("function f() { f() }\nf()", ok=False)["error"]["type"], "RangeError")
        self.check("let n = {}; for (let i = 0; i < 1e5; i++) n = { n }; n")
        self.check("(function f() { try { f() } finally { try { display.text('x') } catch {} } })", ok=True)

    def test_deep_and_long_code(self):
        with kernel() as k:
            self.assertFalse(k.run("[" * 100000)["ok"])
            self.assertFalse(k.run("(" * 100000 + ")" * 100000)["ok"])
            self.assertEqual(k.run("\n".join(f"function f{i}() {{ return {i} }} const c{i} = f{i}()" for i in range(5000)) + "\nc4999")["value"], 4999)
            self.assertEqual(k.run("/* " + "x" * 5000000 + " */ 3")["value"], 3)
            self.assertEqual(k.run("1" + " + 1" * 20000).get("value", "no"), 20001)

    def test_exit_again_and_again(self):
        self.assertEqual(self.check("for (;;) { try { process.exit(4) } catch {} finally { process.exit(5) } }", ok=False)["exit_code"], 4)
        with kernel() as k:
            self.assertEqual(k.run("const t = setInterval(() => process.exit(9), 1); await new Promise(() => {})")["exit_code"], 9)
            self.assertEqual(k.run("clearInterval(t); 5").get("value", 5), 5)
            self.assertEqual(k.run("clearInterval(t); 6")["value"], 6)

    def test_exit_replaced(self):
        self.check("process.exit = process.emit = process.kill = process.on = process.argv = null; 0")

    def test_the_kernels_own_context_is_closed(self):
        self.assertEqual(self.check("""
            const kernelFunction = process.stdout._write.constructor
            const tries = []
            try { kernelFunction('return 1')(); tries.push('compiled') } catch (e) { tries.push(e.name) }
            Object.getPrototypeOf(kernelFunction.prototype).polluted = 1
            tries.push(typeof Object.getPrototypeOf(kernelFunction.prototype).polluted)
            tries""")["value"], ["EvalError", "undefined"])

    def test_kernel_modules_are_not_found(self):
        self.assertEqual(self.check("Object.keys(require.cache).length + ' ' + typeof watchHooks")["value"], "0 undefined")

    def test_own_debugger_sessions(self):
        self.check("const s = new (require('inspector').Session)(); s.connect(); s.post('Runtime.evaluate', { expression: '1' }); s.disconnect(); 0")

    def test_own_workers(self):
        self.assertEqual(self.check("await new Promise(r => new (require('worker_threads').Worker)('console.log(1); process.exit(3)', { eval: true }).on('exit', r))")["value"], 3)

    def test_busy_child(self):
        with kernel() as k:
            k.value("globalThis.kept = 1")
            k.start(BEGUN + "require('child_process').execSync('sleep 100')")
            k.begun()
            k.interrupt()
            self.assertTrue(k.finish()["interrupted"])
            self.assertEqual(k.value("kept"), 1)


class Forgeries(unittest.TestCase):
    def test_forged_frames_change_nothing_inside(self):
        body = json.dumps({"op": "done", "id": "guess", "ok": True}).encode()
        frame = list(struct.pack("<I", len(body)) + body)
        with kernel() as k:
            k.start(f"require('fs').writeSync(3, Buffer.from({frame})); 5")
            self.assertEqual(k.receive()["id"], "guess")
            self.assertEqual((k.receive()["value"], k.value("6")), (5, 6))

    def test_answers_that_nobody_asked_for(self):
        with kernel() as k:
            k.send(op="answer", call=1, value=1)
            k.send(op="input", data="x", end=True)
            k.send(op="nothing")
            self.assertEqual(k.value("1"), 1)


class CleanEnd(unittest.TestCase):
    """The process ends, at once, and says so by its end."""

    def ends(self, code, expected=None):
        with kernel() as k:
            k.start(code)
            with self.assertRaises(Ended):
                k.finish()
            status = k.wait()
            if expected is not None:
                self.assertIn(status, expected)

    def test_channel_closed(self):
        self.ends("require('fs').closeSync(3); 1", [74])
        self.ends("require('fs').closeSync(3); require('fs').openSync('/dev/null'); 1")

    def test_killed_by_itself(self):
        self.ends("process.kill(process.pid, 'SIGKILL')", [-signal.SIGKILL])
        self.ends("process.abort()", [-signal.SIGABRT])
        self.ends("process.reallyExit(5)", [5])

    def test_broken_node(self):
        with kernel() as k:
            # An answer or an end, but not an endless row of errors.
            k.start("Array.prototype.pop = () => { throw new Error('p') }; setInterval(() => {}, 1); await new Promise(r => setTimeout(r, 50))")
            with contextlib.suppress(Ended):
                k.finish()
                k.run("1")
            self.assertEqual(k.wait(), 70)
        self.ends("setInterval(() => { throw new Error('i') }, 0); process.on('uncaughtException', () => {}); await new Promise(() => {})", [70])

    def test_garbage_on_the_channel(self):
        for data in (b"\xff\xff\xff\xff", b"\x04\x00\x00\x00nope"):
            with kernel() as k:
                k.channel.sendall(data)
                self.assertEqual(k.wait(), 76)

    def test_out_of_memory(self):
        with kernel(NODE_OPTIONS="--max-old-space-size=60") as k:
            k.start("const all = []; for (;;) all.push(new Array(1000).fill({}).map(() => ({})))")
            with self.assertRaises(Ended):
                k.finish()
            self.assertNotEqual(k.wait(), 0)


if __name__ == "__main__":
    unittest.main()
