'use strict';
// The standard streams of the code. Output is written at once and completely: what was printed is never lost when the
// process is killed, and the order between descriptors 1 and 2, child processes included, is the true one.

const { Error, Object, Reflect, Uint8Array } = globalThis;
const channel = require('./channel.js');
const { ownText } = require('./values.js');

const { process } = host;
const WRITE_ONLY = 1; // O_WRONLY
let input = null; // of a run whose input comes in frames: { pending: [bytes], ended, stream }
let inputFile = false; // whether descriptor 0 is something else than /dev/null
let stdin = null;
let made = { __proto__: null }; // the streams for output
const kept = []; // copies of descriptors 1 and 2, as they were in the beginning: { descriptor, copy, identity }

function print(descriptor, text) {
  try {
    channel.writeAll(descriptor, channel.encode(text));
  } catch {
    // Closed by the code: nowhere to write to.
  }
}

function outputStream(descriptor) {
  const stream = new host.Writable({
    decodeStrings: true,
    write(chunk, _encoding, done) {
      try {
        channel.writeAll(descriptor, chunk);
      } catch (error) {
        done(error);
        return;
      }
      done();
    },
    destroy(_error, done) { done(null); },
  });
  stream.fd = descriptor;
  stream._type = 'pipe';
  stream._isStdio = true;
  stream.destroySoon = stream.destroy;
  stream.on('error', () => {});
  return stream;
}

// The global console writes to whatever process.stdout is at that time, and past the debugger's console, which would
// remember a thousand messages.
function takeConsole() {
  const to = (name) => ({ write: (text) => process[name].write(ownText(text)), on() {}, once() {}, removeListener() {}, listenerCount: () => 0 });
  const plain = new host.Console({ stdout: to('stdout'), stderr: to('stderr'), ignoreErrors: false });
  for (const key of Object.keys(plain)) {
    if (typeof plain[key] === 'function' && typeof host.console[key] === 'function' && key !== 'Console') host.console[key] = plain[key];
  }
}

function define(name, get) {
  Reflect.defineProperty(process, name, { configurable: true, enumerable: true, get, set(value) {
    Reflect.defineProperty(process, name, { configurable: true, enumerable: true, writable: true, value });
  } });
}

// A stop may have found them in the middle of a write, which they would wait for ever after.
function renewOutput() {
  made = { __proto__: null };
}

function takeOutput() {
  const current = (name, descriptor) => {
    const old = made[name];
    if (old === undefined || old.destroyed || old.writableEnded) made[name] = outputStream(descriptor);
    return made[name];
  };
  define('stdout', () => current('stdout', 1));
  define('stderr', () => current('stderr', 2));
  takeConsole();
}

function identity(descriptor) {
  try {
    const { dev, ino } = host.fstatSync(descriptor);
    return `${dev}:${ino}`;
  } catch {
    return null; // It is closed.
  }
}

// node cannot copy a descriptor, but the same pipe can be opened once more.
function keepOutput() {
  for (const descriptor of [1, 2]) {
    try {
      kept.push({ descriptor, copy: host.openSync(`/proc/self/fd/${descriptor}`, WRITE_ONLY), identity: identity(descriptor) });
    } catch {
      // What is closed then stays closed.
    }
  }
}

// What the code has put in place of descriptors 1 and 2, or that it has closed them, lasts for its run.
function restoreOutput() {
  for (const { descriptor, copy, identity: own } of kept) {
    if (identity(descriptor) === own || identity(copy) !== own) continue;
    try {
      host.closeSync(descriptor);
    } catch {
      // It is closed.
    }
    reopen(descriptor, `/proc/self/fd/${copy}`);
  }
}

// open(2) takes the lowest number that is free.
function reopen(descriptor, file) {
  const lower = [];
  try {
    let found = host.openSync(file, WRITE_ONLY);
    for (; found < descriptor; found = host.openSync(file, WRITE_ONLY)) lower.push(found);
    if (found !== descriptor) lower.push(found);
  } catch {
    // It stays closed.
  }
  for (const other of lower) host.closeSync(other);
}

// Descriptor 0 anew. The lowest free number is taken by open(2).
function reopenInput(file, flags) {
  try {
    host.closeSync(0);
  } catch {
    // The code has closed it.
  }
  const descriptor = host.openSync(file, flags, 0o600);
  if (descriptor !== 0) {
    host.closeSync(descriptor);
    throw new Error('descriptor 0 is taken');
  }
}

// All of the input as a file without a name: readable by the code, by readFileSync(0) and by child processes.
function inputFromText(text) {
  for (const directory of ['/tmp', '.']) {
    const file = `${directory}/.stdin-${process.pid}-${host.performanceNow()}`;
    try {
      reopenInput(file, 'wx+');
    } catch {
      continue;
    }
    inputFile = true;
    try {
      host.unlinkSync(file);
      const bytes = channel.encode(text);
      for (let at = 0; at < bytes.length;) at += host.writeSync(0, bytes, at, bytes.length - at, at);
      return true;
    } catch {
      closeInput();
    }
  }
  closeInput();
  return false;
}

function closeInput() {
  inputFile = false;
  try {
    reopenInput('/dev/null', 'r');
  } catch {
    // Without descriptor 0 the code reads an error instead of the end.
  }
}

// `given`: null, { text } or { live }.
function beginInput(given) {
  stdin = null;
  input = null;
  if (given === null) return;
  const text = channel.field(given, 'text');
  if (typeof text === 'string' && inputFromText(text)) return;
  input = { pending: [], ended: false, stream: null };
  if (typeof text === 'string') receive(text, true);
  takeReads();
}

function endInput() {
  if (input !== null) {
    if (!input.ended) receive('', true);
    returnReads();
  }
  if (inputFile) closeInput();
  input = null;
  try {
    if (stdin !== null) stdin.destroy();
  } catch {
    // The code has made something else of it.
  }
  stdin = null;
}

// More input of the run that is going on.
function receive(text, end) {
  if (input === null || input.ended) return;
  if (text !== '') input.pending.push(channel.encode(text));
  input.ended = end;
  if (input.stream !== null) pour();
}

function pour() {
  while (input.pending.length > 0) input.stream.push(input.pending.shift());
  if (input.ended) input.stream.push(null);
}

function inputStream() {
  if (input === null) {
    const stream = new host.ReadStream(null, { fd: 0, autoClose: false });
    stream.fd = 0;
    return stream;
  }
  const own = input;
  own.stream = new host.Readable({ read() { if (own === input) pour(); } });
  own.stream.fd = 0;
  return own.stream;
}

// Input that comes in frames is not behind descriptor 0. The synchronous reads of `fs` are led to it meanwhile.
const original = {};

function readInput(buffer, offset, length) {
  while (input.pending.length === 0 && !input.ended) if (!channel.receiveNow()) return 0;
  if (input.pending.length === 0) return 0;
  const [chunk] = input.pending;
  const count = chunk.length < length ? chunk.length : length;
  new Uint8Array(buffer.buffer, buffer.byteOffset + offset, count).set(chunk.subarray(0, count));
  if (count === chunk.length) input.pending.shift();
  else input.pending[0] = chunk.subarray(count);
  return count;
}

function takeReads() {
  original.readSync = host.fs.readSync;
  original.readFileSync = host.fs.readFileSync;
  host.fs.readSync = (descriptor, buffer, offset, length, ...rest) => {
    if (descriptor !== 0 || input === null) return Reflect.apply(original.readSync, host.fs, [descriptor, buffer, offset, length, ...rest]);
    const given = typeof offset === 'object' && offset !== null ? offset : { offset, length };
    const from = given.offset || 0;
    return readInput(buffer, from, given.length ?? buffer.byteLength - from);
  };
  host.fs.readFileSync = (file, options) => {
    if ((file !== 0 && file !== '/dev/stdin') || input === null) return Reflect.apply(original.readFileSync, host.fs, [file, options]);
    const chunks = [];
    const chunk = new Uint8Array(65536);
    for (let count = readInput(chunk, 0, 65536); count > 0; count = readInput(chunk, 0, 65536)) chunks.push(chunk.slice(0, count));
    return host.joined(chunks, typeof options === 'string' ? options : options && options.encoding);
  };
}

function returnReads() {
  host.fs.readSync = original.readSync;
  host.fs.readFileSync = original.readFileSync;
}

function take() {
  keepOutput();
  takeOutput();
  define('stdin', () => {
    if (stdin === null) stdin = inputStream();
    return stdin;
  });
}

module.exports = { beginInput, endInput, print, receive, renewOutput, restoreOutput, take };
