'use strict';
// What the kernel needs of node, taken before any code of a run can replace it. Runs in the main context.

const fs = require('fs');
const net = require('net');
const os = require('os');
const path = require('path');
const util = require('util');
const vm = require('vm');
const Module = require('module');
const { Worker } = require('worker_threads');
const { Console } = require('console');
const { Readable, Writable } = require('stream');

const encoder = new TextEncoder();
const decoder = new TextDecoder();

// Deprecated and experimental parts of node are used on purpose; nobody needs to read about it.
function quietly(work) {
  const { emitWarning } = process;
  process.emitWarning = () => {};
  try {
    return work();
  } finally {
    process.emitWarning = emitWarning;
  }
}

// node carries the parser acorn for its own use. Gives what `evaluate` makes of its source, or null.
function parserSource(evaluate) {
  try {
    const source = quietly(() => process.binding('natives'))['internal/deps/acorn/acorn/dist/acorn'];
    const module = { exports: {} };
    evaluate(`(function (module, exports) {${source}\n})`)(module, module.exports);
    return typeof module.exports.parse === 'function' ? module.exports : null;
  } catch {
    return null;
  }
}

// Stopping the thread leaves node's record of nested callbacks unbalanced, which node takes for a fatal bug.
// These put it right: `suspend` before, `restore` after.
function callbackRecord() {
  let binding;
  try {
    binding = quietly(() => process.binding('async_wrap'));
    if (!binding.async_hook_fields || !binding.clearAsyncIdStack) return { suspend() {}, restore() {} };
  } catch {
    return { suspend() {}, restore() {} };
  }
  const { async_hook_fields: fields, clearAsyncIdStack, constants: { kCheck, kTotals } } = binding;
  let saved = null;
  return {
    suspend() {
      if (saved === null) saved = [fields[kCheck], fields[kTotals]];
      fields[kCheck] = 0;
      fields[kTotals] = 0;
    },
    restore() {
      clearAsyncIdStack();
      if (saved !== null) [fields[kCheck], fields[kTotals]] = saved;
      saved = null;
    },
  };
}

const { BigInt, Map } = globalThis;
const { isArray } = Array;
const { keys } = Object;
const { apply } = Reflect;
const { set } = Map.prototype;
const { from } = Buffer;
const { toString: toText } = Buffer.prototype;
const { test } = RegExp.prototype;
const DIGITS = /^-?[0-9]+$/;
const FLOATS = { __proto__: null, nan: NaN, inf: Infinity, '-inf': -Infinity };

// What the caller gave, parsed a moment ago, with the forms that JSON lacks as what they stand for. Any other stays as it is.
function given(value) {
  if (typeof value !== 'object' || value === null) return value;
  if (isArray(value)) {
    for (let at = 0; at < value.length; at += 1) value[at] = given(value[at]);
    return value;
  }
  const names = keys(value);
  const form = names.length === 1 ? special(names[0], value[names[0]]) : undefined;
  if (form !== undefined) return form;
  for (let at = 0; at < names.length; at += 1) value[names[at]] = given(value[names[at]]);
  return value;
}

function special(mark, inner) {
  if (mark === '$dict' && isArray(inner)) {
    const map = new Map();
    for (let at = 0; at < inner.length; at += 1) {
      if (!isArray(inner[at]) || inner[at].length !== 2) return undefined;
      apply(set, map, [given(inner[at][0]), given(inner[at][1])]);
    }
    return map;
  }
  if (typeof inner !== 'string') return undefined;
  if (mark === '$bytes') return bytes(inner);
  if (mark === '$float') return FLOATS[inner];
  return mark === '$int' && apply(test, DIGITS, [inner]) ? BigInt(inner) : undefined;
}

// What is almost base64 is somebody's own text: read as far as it goes, it would be other bytes than were meant.
function bytes(text) {
  const read = apply(from, Buffer, [text, 'base64']);
  return apply(toText, read, ['base64']) === text ? read : undefined;
}

// Lets scripts of runs use import(). Before node 20.12 there is no ready-made loader.
function importer() {
  const ready = vm.constants && vm.constants.USE_MAIN_CONTEXT_DEFAULT_LOADER;
  if (ready === undefined) return (specifier) => import(resolveForImport(specifier));
  quietly(() => new vm.Script('import("node:fs")', { importModuleDynamically: ready }).runInThisContext());
  return ready;
}

function resolveForImport(specifier) {
  if (!/^\.{0,2}\//.test(specifier)) {
    if (Module.builtinModules.includes(specifier.replace(/^node:/, ''))) return specifier;
    if (/^[a-z]+:/.test(specifier)) return specifier;
    specifier = Module.createRequire(path.join(process.cwd(), 'run')).resolve(specifier);
  }
  return require('url').pathToFileURL(path.resolve(specifier)).href;
}

// Ends the process. On its way out node would say on stderr that it waits for a debugger to leave, which is the watcher.
const { closeSync } = fs;
const { reallyExit } = process;
function endQuietly(code) {
  try {
    closeSync(2);
  } catch {
    // It is closed.
  }
  apply(reallyExit, process, [code]);
}

// Chunks of bytes as one Buffer, or as text.
function joined(chunks, encoding) {
  const all = Buffer.concat(chunks);
  return encoding ? all.toString(encoding) : all;
}

// What `import.meta` stands for in a run.
function importMeta(file, require) {
  const { pathToFileURL } = require('url');
  return {
    __proto__: null, url: pathToFileURL(file).href, filename: file, dirname: path.dirname(file),
    resolve: (specifier) => pathToFileURL(require.resolve(specifier)).href,
  };
}

// The event loop watches the channel through this handle. Its `onread` is called by native code, past everything
// that JavaScript code could replace.
function channelHandle(descriptor) {
  const socket = new net.Socket({ fd: descriptor, readable: true, writable: true, manualStart: true });
  return socket._handle;
}

module.exports = Object.freeze({
  __proto__: null,
  // The main context's own
  global: globalThis, process, parse: JSON.parse, then: Promise.prototype.then,
  Error, TypeError, RangeError,
  evaluateHere: (source) => vm.runInThisContext(source),
  // Files and bytes
  openSync: fs.openSync, closeSync: fs.closeSync, fstatSync: fs.fstatSync, readSync: fs.readSync, writeSync: fs.writeSync, unlinkSync: fs.unlinkSync,
  fs, given, joined, encode: encoder.encode.bind(encoder), decode: decoder.decode.bind(decoder),
  base64: Buffer.prototype.base64Slice, ReadStream: fs.ReadStream, Readable, Writable, Console, console,
  // Code
  Script: vm.Script, runInThisContext: vm.Script.prototype.runInThisContext, importer: importer(), Module, path, importMeta,
  parserSource, kernelDirectory: __dirname,
  // The thread
  Worker, SharedArrayBuffer, setImmediate, performanceNow: performance.now.bind(performance),
  callbackRecord: callbackRecord(), channelHandle, cwd: process.cwd, exit: process.exit, kill: process.kill, reallyExit: endQuietly, signals: { __proto__: null, ...os.constants.signals },
  captureUncaught: process.setUncaughtExceptionCaptureCallback,
  emit: process.emit, listenerCount: process.listenerCount, on: process.on, off: process.off, listeners: process.listeners,
  // Looking at values
  inspect: util.inspect, types: { __proto__: null, ...util.types },
});
