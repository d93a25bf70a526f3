'use strict';
// The second thread: waits for SIGINT and for requests of the main thread, and stops the main thread when it must.
// Node has a handler for SIGINT that does not end the process only while somebody asks for it; this thread asks once, for
// good. What comes while a script with `breakOnSigint` runs ends that script, and what comes at other times is remembered.

const fs = require('fs');
const { internalBinding } = require('internal/test/binding'); // of this thread alone: see watch.js
const inspector = require('inspector');
const vm = require('vm');
const { parentPort, workerData } = require('worker_threads');
const { cells, cell, lock: { IN_FRAME, POSTING, STOPPING, RECOVERING }, answer: { WAITING, TOO_LATE }, request: { NONE, STOP, SEND, SENT, FAILED } } = workerData;

const GRACE_MS = 20; // how long a main thread may take to answer before it counts as busy
const AGAIN_MS = 120; // a stop that comes late may hit the run after it, so not much sooner than any thread gets its turn

const { startSigintWatchdog, stopSigintWatchdog, watchdogHasPendingSigint } = internalBinding('contextify');
startSigintWatchdog();

const session = new inspector.Session();
session.connectToMainThread();

function call(objectId) {
  session.post('Runtime.callFunctionOn', { objectId, functionDeclaration: 'function () { this(); }', silent: true });
}

// Waits on a cell that nobody changes.
function sleep(milliseconds) {
  Atomics.wait(cells, cell.NEVER, 0, milliseconds);
}

// Stops the main thread, and again until it has noticed: code that feeds the queue of process.nextTick goes on after a stop.
function stop(hooks) {
  for (let round = 0; ;) {
    let now = Atomics.load(cells, cell.LOCK);
    while (now === IN_FRAME) {
      sleep(1);
      now = Atomics.load(cells, cell.LOCK);
    }
    if (now === RECOVERING) return;
    // POSTING can only be what a signal has cut short here.
    if (now !== POSTING && Atomics.compareExchange(cells, cell.LOCK, now, POSTING) !== now) continue;
    // Not each time: a call that waits in the queue behind a stop would use the stop up. But again, since a stop may hit
    // what the call before has left to do.
    if (round % 3 === 0) call(hooks.brace);
    session.post('Runtime.terminateExecution');
    Atomics.store(cells, cell.LOCK, STOPPING);
    Atomics.wait(cells, cell.LOCK, STOPPING, AGAIN_MS);
    if (Atomics.load(cells, cell.LOCK) !== STOPPING) return;
    if (round === 0) interruptChild();
    round += 1;
  }
}

// A main thread that waits for a child process (execSync) does not see that it is stopped. At a terminal the signal would
// reach that child too; here the youngest one and its descendants are given it when the thread has not moved.
function interruptChild() {
  const all = processes();
  const [youngest] = all.filter((one) => one.parent === process.pid).sort((a, b) => b.started - a.started);
  const family = youngest ? [youngest] : [];
  for (const member of family) {
    family.push(...all.filter((one) => one.parent === member.id));
    try {
      process.kill(member.id, 'SIGINT');
    } catch {
      // It has ended meanwhile.
    }
  }
}

function processes() {
  const found = [];
  for (const name of fs.readdirSync('/proc').filter((entry) => /^\d+$/.test(entry))) {
    try {
      // What follows the name, which may itself hold anything: state, parent, …; the start time is the 20th.
      const fields = fs.readFileSync(`/proc/${name}/stat`, 'latin1').replace(/^.*\) /s, '').split(' ');
      found.push({ id: +name, parent: +fields[1], started: +fields[19] });
    } catch {
      // It has ended meanwhile.
    }
  }
  return found;
}

function interrupt(hooks) {
  Atomics.store(cells, cell.ANSWER, WAITING);
  call(hooks.knock);
  Atomics.wait(cells, cell.ANSWER, WAITING, GRACE_MS);
  if (Atomics.compareExchange(cells, cell.ANSWER, WAITING, TOO_LATE) === WAITING) stop(hooks);
  forget();
}

// Signals that came until now were for what has just been interrupted.
function forget() {
  startSigintWatchdog();
  stopSigintWatchdog();
}

function watch(hooks) {
  globalThis.serve = () => serve(hooks);
  for (;;) {
    try {
      vm.runInThisContext('serve()', { breakOnSigint: true });
    } catch {
      interrupt(hooks);
    }
  }
}

let announced = false;
function serve(hooks) {
  if (!announced) parentPort.postMessage('armed');
  announced = true;
  if (watchdogHasPendingSigint()) throw new Error('a signal came before this script began');
  Atomics.wait(cells, cell.REQUEST, NONE);
  if (Atomics.load(cells, cell.REQUEST) === SEND) send();
  if (Atomics.compareExchange(cells, cell.REQUEST, STOP, NONE) === STOP) stop(hooks);
}

// A signal that the code sends to its own process. An interrupt of this thread meanwhile leaves the request as it is.
function send() {
  let outcome = SENT;
  try {
    process.kill(Atomics.load(cells, cell.TARGET), Atomics.load(cells, cell.SIGNAL));
  } catch {
    outcome = FAILED;
  }
  Atomics.store(cells, cell.REQUEST, outcome);
  Atomics.notify(cells, cell.REQUEST);
  Atomics.wait(cells, cell.REQUEST, outcome);
}

// The functions of the main thread are asked for once, and held by id: their names are gone before the first run.
setInterval(() => {}, 60000); // the answers alone would not keep this thread alive
session.post('Runtime.evaluate', { expression: 'watchHooks.knock' }, (_, knock) => {
  session.post('Runtime.evaluate', { expression: 'watchHooks.brace' }, (__, brace) => {
    watch({ knock: knock.result.objectId, brace: brace.result.objectId });
  });
});
