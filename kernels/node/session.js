'use strict';
// The life of runs: one at a time, each with exactly one `done`.
//
// A run is over when its code and what it waits for are through, when it fails anywhere (also in a timer), when it asks to
// exit, or when it is interrupted. The stack may be cut off at any time (watch.js), so nothing here relies on returning.

const { JSON, Math, Number, Object, Reflect, Symbol } = globalThis;
const channel = require('./channel.js');
const { describe } = require('./errors.js');
const display = require('./display.js');
const program = require('./program.js');
const streams = require('./streams.js');
const tools = require('./tools.js');
const { toData, toText } = require('./values.js');
const watch = require('./watch.js');

const { process } = host;
const PID = process.pid;
const INTERRUPTED = 130; // how a script ends that SIGINT has ended, to a shell
const VALUE_BYTES = 1024 * 1024;
const MAX_UNCAUGHT = 1000;
const MAX_VALUE_BYTES = 7 * 1024 * 1024;

let run = null; // { id, name, file, last, valueBytes, outcome }; `file` is what V8 calls the code
let rules = false; // whether imports are to be restricted, which this kernel cannot
let uncaught = 0; // errors since the last frame
let leaving = false; // after the `done` of the last run: the process ends like a script's

// The first outcome counts, but a failure is more than a value. It is told after node had its chance to report rejections
// that nobody handles.
function conclude(outcome, own = run) {
  if (own === null || own !== run) return;
  if (own.outcome === null) host.setImmediate(() => { if (run === own) finish(); });
  else if (!outcome.failed || !('value' in own.outcome)) return;
  own.outcome = outcome;
}

function finish() {
  const { id, last, outcome } = run;
  const done = { op: 'done', id, ok: true, error: null, interrupted: false };
  try {
    tell(done, outcome);
  } catch {
    done.error = plainError('Error', 'what the run gave cannot be told');
  }
  done.ok = done.error === null && !done.exit_code;
  if (outcome.failed) streams.print(2, `Uncaught ${done.error.traceback}`);
  run = null;
  tools.end();
  streams.endInput();
  if (!channel.send(done)) channel.send({ ...done, ok: false, value: undefined, value_text: undefined, error: plainError('RangeError', 'too large to be told') });
  if (last) leave(done);
}

function plainError(type, message) {
  return { type, message, traceback: `${type}: ${message}\n`, line: null, column: null, source: null, causes: [] };
}

function tell(done, outcome) {
  if (outcome.interrupted) {
    done.interrupted = true;
    done.error = plainError('Interrupted', 'the run was interrupted');
  } else if (outcome.failed) {
    done.error = outcome.described || describe(outcome.thrown, run.file);
  } else if (outcome.exit !== undefined) {
    done.exit_code = outcome.exit;
  } else if (outcome.value !== undefined) {
    tellValue(done, outcome.value, run.valueBytes);
  }
}

function tellValue(done, value, limit) {
  const data = toData(value, limit);
  try {
    const own = display.offered(value);
    if (own !== null) display.show(done.id, own);
  } catch {
    // What it offers cannot be shown; its text remains.
  }
  if (data !== undefined) done.value = data;
  done.value_text = toText(value, limit, data === undefined);
}

// The end of the process, after the last run.
function leave(done) {
  leaving = true;
  if (done.error !== null || done.exit_code !== undefined) {
    Reflect.apply(host.exit, process, [done.error !== null ? 1 : done.exit_code]);
  }
  channel.letGo();
}

function awaitPromise(promise, boxed, own) {
  Reflect.apply(host.then, promise, [
    (value) => arrive(boxed && value ? value[0] : value, own),
    (thrown) => conclude({ failed: true, thrown }, own),
  ]);
}

// A promise as the last value is waited for: `main()` at the end of a script is what most people write.
function arrive(value, own) {
  if (host.types.isPromise(value)) awaitPromise(value, false, own);
  else conclude({ value }, own);
}

function begin(frame) {
  const bytes = channel.field(frame, 'value_bytes');
  const own = {
    id: channel.field(frame, 'id'),
    name: `${channel.field(frame, 'name') || 'run'}`,
    file: null,
    last: channel.field(frame, 'last') === true,
    valueBytes: Number.isInteger(bytes) && bytes >= 0 ? Math.min(bytes, MAX_VALUE_BYTES) : VALUE_BYTES,
    outcome: null,
  };
  run = own;
  try {
    execute(own, frame);
  } catch (thrown) {
    conclude({ failed: true, thrown }, own);
  }
}

function execute(own, frame) {
  if (rules) throw new host.Error('Rules for imports are not enforced in JavaScript; leave `imports` out');
  setArguments(own.name, channel.field(frame, 'args') || []);
  streams.restoreOutput();
  streams.beginInput(channel.field(frame, 'stdin'));
  tools.begin(own.id, channel.field(frame, 'tools'));
  tools.put(channel.field(frame, 'globals') || {});
  display.showKept(own.id);
  const prepared = program.prepare(own.name, `${channel.field(frame, 'code')}`, !own.last);
  own.file = prepared.file;
  if (prepared.error) {
    conclude({ failed: true, described: prepared.error }, own);
    return;
  }
  const result = program.execute(prepared);
  if (prepared.waits) awaitPromise(result, prepared.boxed, own);
  else if (!prepared.hasValue) conclude({ value: undefined }, own);
  else arrive(prepared.boxed && result ? result[0] : result, own);
}

function setArguments(name, given) {
  let directory = '.';
  try {
    directory = Reflect.apply(host.cwd, process, []);
  } catch {
    // The code has removed it.
  }
  const all = [process.execPath, `${directory}/${name}`];
  for (let at = 0; at < given.length; at += 1) all.push(`${given[at]}`);
  process.argv = host.parse(JSON.stringify(all));
}

function setup(frame) {
  const environment = channel.field(frame, 'env');
  if (environment !== null) {
    for (const name of Object.keys(process.env)) if (!Object.hasOwn(environment, name)) delete process.env[name];
    for (const name of Object.keys(environment)) process.env[name] = environment[name];
  }
  rules = channel.field(frame, 'imports') !== null;
}

// What the sandbox was given while it lives.
function addVariables(frame) {
  const given = channel.field(frame, 'env', {});
  try {
    for (const name of Object.keys(given)) process.env[name] = given[name];
  } catch {
    // The code has made something else of it.
  }
}

function onFrame(frame) {
  uncaught = 0;
  watch.turned();
  switch (channel.field(frame, 'op')) {
    case 'setup': setup(frame); break;
    case 'env': addVariables(frame); break;
    case 'run': if (run === null && !leaving) begin(frame); break;
    case 'answer': tools.answer(frame); break;
    case 'input': streams.receive(`${channel.field(frame, 'data', '')}`, channel.field(frame, 'end') === true); break;
    default:
  }
}

// Nobody is there any more (0), or what came was no frame (76).
function onEnd(status) {
  if (!leaving) Reflect.apply(host.reallyExit, process, [status]);
}

// What nothing catches: in a run, its error. Between two runs, a message of the background. Code that has broken node itself
// makes an endless row of them, and no frame gets through any more; then the process ends.
function onUncaught(thrown) {
  uncaught += 1;
  if (uncaught > MAX_UNCAUGHT) {
    streams.print(2, 'belljar: too many uncaught errors; the JavaScript kernel gives up\n');
    Reflect.apply(host.reallyExit, process, [70]);
  }
  if (Reflect.apply(host.listenerCount, process, ['uncaughtException']) > 0) {
    try {
      Reflect.apply(host.emit, process, ['uncaughtException', thrown, 'uncaughtException']);
    } catch (again) {
      conclude({ failed: true, thrown: again });
    }
  } else if (run !== null) {
    conclude({ failed: true, thrown });
  } else {
    streams.print(2, `Uncaught ${describe(thrown, null).traceback}`);
    if (leaving) Reflect.apply(host.exit, process, [1]);
  }
}

function onInterrupt() {
  if (Reflect.apply(host.listenerCount, process, ['SIGINT']) > 0) {
    Reflect.apply(host.emit, process, ['SIGINT', 'SIGINT', 2]);
  } else {
    conclude({ interrupted: true });
  }
}

// The stack was cut off: by process.exit, or by an interrupt.
function onStopped(why) {
  streams.renewOutput();
  if (run !== null) {
    run.outcome = why || { interrupted: true };
    finish();
  }
}

// Frames that had come in before the stop.
function onTurned() {
  channel.deliver(null);
}

function exitCode(given) {
  const code = given === undefined ? process.exitCode : given;
  const number = Number(code ?? 0);
  return Number.isInteger(number) ? number & 255 : 1;
}

function exit(given) {
  const code = exitCode(given);
  if (leaving) Reflect.apply(host.exit, process, [code]);
  if (run !== null && run.last) {
    run.outcome = { exit: code };
    finish();
  }
  watch.stop({ exit: code });
}

// Signals of the code to itself. Of one that has no listener node assumes that it ends the process, and before it sends it waits
// for the watcher to hang up, which nothing here survives. So the watcher sends those.
function kill(pid, signal = 'SIGTERM') {
  const target = Number(pid);
  const number = typeof signal === 'number' ? signal : host.signals[signal];
  const name = Object.keys(host.signals).find((one) => host.signals[one] === number);
  const toItself = name !== undefined && [PID, 0, -1, -PID].includes(target);
  const listened = toItself && Reflect.apply(host.listenerCount, process, [name]) > 0;
  if (!toItself || (listened && name !== 'SIGINT')) return Reflect.apply(host.kill, process, [pid, signal]);
  if (name !== 'SIGINT' || target !== PID) return watch.send(target, number);
  if (listened) {
    host.setImmediate(onInterrupt);
    return true;
  }
  if (leaving || (run !== null && run.last)) exit(INTERRUPTED);
  return watch.stop({ interrupted: true });
}

// The signal belongs to the watcher. Listeners of the code are called by it, not by node.
function takeSignals() {
  for (const event of ['newListener', 'removeListener']) {
    for (const original of [...Reflect.apply(host.listeners, process, [event])]) {
      Reflect.apply(host.off, process, [event, original]);
      Reflect.apply(host.on, process, [event, (type) => { if (type !== 'SIGINT') Reflect.apply(original, process, [type]); }]);
    }
  }
}

function takeNames() {
  const { Module, path } = host;
  const file = path.join(process.cwd(), 'run.js');
  const module = new Module(file, null);
  module.filename = file;
  module.paths = Module._nodeModulePaths(process.cwd());
  const require = Module.createRequire(file);
  require.main = module;
  process.mainModule = module;
  const given = { require, module, exports: module.exports, __filename: file, __dirname: process.cwd() };
  for (const name of Object.keys(given)) {
    Reflect.defineProperty(host.global, name, { value: given[name], writable: true, configurable: true, enumerable: false });
  }
  Reflect.defineProperty(host.global, Symbol.for('belljar.meta'), { value: host.importMeta(file, require) });
  process.exit = host.evaluateHere('(exit) => function process_exit(code) { exit(code); }')(exit);
  process.reallyExit = host.reallyExit;
  process.kill = host.evaluateHere('(kill) => function process_kill(pid, signal) { return kill(pid, signal); }')(kill);
}

function start() {
  channel.protectWith(watch.guard);
  streams.take();
  takeNames();
  takeSignals();
  tools.start();
  Reflect.apply(host.captureUncaught, process, [onUncaught]);
  program.prepare('warm', 'const warm = 1; function up() {} await 0', false);
  watch.start({ onInterrupt, onStopped, onTurned }, () => {
    channel.listen(onFrame, onEnd);
    channel.send({ op: 'ready' });
  });
}

module.exports = { start };
