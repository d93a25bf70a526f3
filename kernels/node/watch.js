'use strict';
// The main thread's side of interrupts. Two ways to stop what is going on:
//   an idle thread (a pending await) answers the watcher's knock and is told at once;
//   a busy one is stopped: everything on its stack ends without a chance to catch it, the kernel's own frames included.
// After a stop, node's event loop goes on, and `settle` is the first of ours to run.

const { Atomics, Int32Array, Reflect } = globalThis;

const cell = { LOCK: 0, ANSWER: 1, REQUEST: 2, NEVER: 3, TARGET: 4, SIGNAL: 5 };
const request = { NONE: 0, STOP: 1, SEND: 2, SENT: 3, FAILED: 4 };
// LOCK. The main thread may not be stopped while it writes or reads a frame (IN_FRAME), nor when it already recovers from a
// stop (RECOVERING). POSTING: the watcher is about to send a stop; STOPPING: it has.
const lock = { FREE: 0, IN_FRAME: 1, POSTING: 2, STOPPING: 3, RECOVERING: 4 };
const answer = { NONE: 0, WAITING: 1, GIVEN: 2, TOO_LATE: 3 };
const SPIN_MS = 5;
const LEFT_TICKS_MS = 5;
const WATCHER_MS = 30_000; // long enough for a watcher that is kept from running by others

const cells = new Int32Array(new host.SharedArrayBuffer(4 * 8));
let depth = 0;
let onInterrupt = null;
let onStopped = null;
let onTurned = null;
let stopping = false;
let reason = null;
let ticksUntil = Infinity;

// The lock is taken again by what is called inside it.
const guard = {
  acquire() {
    if (depth === 0) while (Atomics.compareExchange(cells, cell.LOCK, lock.FREE, lock.IN_FRAME) !== lock.FREE);
    depth += 1;
  },
  release() {
    depth -= 1;
    if (depth === 0) Atomics.compareExchange(cells, cell.LOCK, lock.IN_FRAME, lock.FREE);
  },
};

// A loop that the stop will find, if it has not found anything before.
function spin(milliseconds) {
  const end = host.performanceNow() + milliseconds;
  while (host.performanceNow() < end);
}

// Called by the watcher, maybe in the middle of anything; so the answer is given from the event loop.
function knock() {
  host.setImmediate(() => {
    const before = Atomics.compareExchange(cells, cell.ANSWER, answer.WAITING, answer.GIVEN);
    if (before !== answer.WAITING) return;
    Atomics.notify(cells, cell.ANSWER);
    onInterrupt();
  });
}

// Called just before the thread is stopped.
function brace() {
  stopping = true;
  host.callbackRecord.suspend();
  host.setImmediate(settle);
}

// The first of ours after a stop; or still before it, if the thread came to an end by itself meanwhile.
function settle() {
  if (!stopping) return;
  host.setImmediate(settle); // in case that this call is what is stopped
  for (;;) {
    const before = Atomics.compareExchange(cells, cell.LOCK, lock.STOPPING, lock.RECOVERING);
    if (before === lock.STOPPING || before === lock.RECOVERING) break;
  }
  spin(SPIN_MS);
  stopping = false;
  host.callbackRecord.restore();
  depth = 0;
  Atomics.store(cells, cell.REQUEST, request.NONE); // what was asked for is off the stack
  Atomics.notify(cells, cell.REQUEST);
  Atomics.store(cells, cell.LOCK, lock.FREE);
  Atomics.notify(cells, cell.LOCK);
  const why = reason;
  reason = null;
  ticksUntil = host.performanceNow() + LEFT_TICKS_MS;
  host.setImmediate(() => {
    turned();
    onTurned();
  });
  onStopped(why);
}

// The event loop goes round again after a stop.
function turned() {
  ticksUntil = Infinity;
}

// Code that asks for the next tick in each tick keeps the event loop from turning, and no stop ends that for certain: the
// queue is node's own. So what is still in it after a stop has a short time, and is dropped after that.
function takeTicks() {
  const original = host.process.nextTick;
  const tick = (callback, given) => {
    if (ticksUntil === Infinity || host.performanceNow() < ticksUntil) Reflect.apply(callback, undefined, given);
  };
  const ask = (callback, given) => {
    Reflect.apply(original, host.process, typeof callback === 'function' ? [tick, callback, given] : [callback]);
  };
  host.process.nextTick = host.evaluateHere('(ask) => function nextTick(callback, ...args) { ask(callback, args); }')(ask);
}

// Ends everything on the stack, as process.exit has to. Does not return.
function stop(why) {
  reason = why;
  Atomics.store(cells, cell.REQUEST, request.STOP);
  Atomics.notify(cells, cell.REQUEST);
  spin(WATCHER_MS);
  throw new host.Error('the kernel cannot stop this code: its watcher is gone');
}

// Has the watcher send a signal. Does not return if that ends the process.
function send(target, signal) {
  Atomics.store(cells, cell.TARGET, target);
  Atomics.store(cells, cell.SIGNAL, signal);
  Atomics.store(cells, cell.REQUEST, request.SEND);
  Atomics.notify(cells, cell.REQUEST);
  Atomics.wait(cells, cell.REQUEST, request.SEND, WATCHER_MS);
  const sent = Atomics.exchange(cells, cell.REQUEST, request.NONE) === request.SENT;
  Atomics.notify(cells, cell.REQUEST);
  if (!sent) throw new host.Error('kill: the signal cannot be sent');
  return true;
}

function start(handlers, onArmed) {
  onInterrupt = handlers.onInterrupt;
  onStopped = handlers.onStopped;
  onTurned = handlers.onTurned;
  takeTicks();
  // Found by the watcher through the debugger's protocol, then removed.
  host.global.watchHooks = { knock, brace };
  const worker = new host.Worker(host.path.join(host.kernelDirectory, 'watcher.js'), {
    workerData: { cells, cell, lock, answer, request },
    env: {},
    execArgv: ['--expose-internals', '--no-warnings'], // for node's own handling of SIGINT; code in the main thread does not see them
    resourceLimits: { maxOldGenerationSizeMb: 8, maxYoungGenerationSizeMb: 1, stackSizeMb: 1 },
  });
  worker.once('message', () => {
    delete host.global.watchHooks;
    worker.unref();
    onArmed();
  });
  const fail = (problem) => {
    host.writeSync(2, `belljar: the JavaScript kernel cannot watch for interrupts: ${problem}; it needs a node with inspector and workers\n`);
    Reflect.apply(host.reallyExit, host.process, [70]);
  };
  worker.once('error', (error) => fail(error.message));
  worker.once('exit', () => fail('its second thread has ended'));
}

module.exports = { guard, send, start, stop, turned };
