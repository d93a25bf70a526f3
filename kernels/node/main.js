'use strict';
// Entry of the JavaScript kernel.
//
// Theory of operation. The code of the runs lives in node's own (main) context, so that it sees what a script sees.
// The kernel lives in the same thread but in a context of its own: its Array, JSON, Promise are not the ones that the
// code can replace. What the kernel needs of node it takes once, here, before any run (`host`).
// A second thread (watcher.js) waits for SIGINT and stops the main thread when that is busy.

const fs = require('fs');
const path = require('path');
const vm = require('vm');
const host = require('./host.js');

const realm = vm.createContext({ __proto__: null }, {
  name: 'kernel',
  codeGeneration: { strings: false, wasm: false },
});
const loaded = { __proto__: null };

// CommonJS in small: the modules beside this file, in the kernel's context.
function load(name) {
  const file = path.join(__dirname, name);
  if (!loaded[file]) {
    const source = `(function (module, require, host) {${fs.readFileSync(file, 'utf8')}\n})`;
    const module = { exports: {} };
    loaded[file] = module;
    new vm.Script(source, { filename: file }).runInContext(realm)(module, load, host);
  }
  return loaded[file].exports;
}

load('./rewrite.js').useParser(host.parserSource((source) => (
  new vm.Script(source, { filename: path.join(__dirname, 'acorn') }).runInContext(realm))));
const session = load('./session.js');
// Streams and errors of the kernel's context reach the code. Nothing it finds there can be changed.
vm.runInContext(`for (const name of Object.getOwnPropertyNames(globalThis)) {
  const value = globalThis[name];
  if (value === globalThis || (typeof value !== 'object' && typeof value !== 'function') || value === null) continue;
  Object.freeze(value);
  if (value.prototype) Object.freeze(value.prototype);
}`, realm);
for (const file of Object.keys(require.cache)) delete require.cache[file];
session.start();
