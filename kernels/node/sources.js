'use strict';
// The texts of runs, for the lines of errors. A second text of the name `main.js` is `main.js#2` to V8, so that functions of both
// are told apart. What is printed says `main.js`.

const { Map, Math, Set } = globalThis;
const { lineStarts } = require('./edits.js');

// How much code of runs is remembered, for the lines of functions that they defined
const MAX_SOURCES = 200;
const MAX_SOURCES_LENGTH = 8 * 1024 * 1024;
const MAX_SOURCE_LINE = 400;
const MAX_FRAME = 1000;

const sources = new Map(); // what V8 calls it → { name, code, locate }
const names = new Set();
let sourcesLength = 0;
let serial = 1;

// What V8 is to call the next text of that name.
function fileFor(name) {
  let file = name;
  while (names.has(file)) file = `${name}#${serial += 1}`;
  names.add(name);
  return file;
}

function remember(file, name, code, locate) {
  forget(file);
  sources.set(file, { name, code, locate });
  sourcesLength += code.length;
  while (sources.size > MAX_SOURCES || (sourcesLength > MAX_SOURCES_LENGTH && sources.size > 1)) forget(sources.keys().next().value);
}

function forget(file) {
  if (sources.has(file)) sourcesLength -= sources.get(file).code.length;
  sources.delete(file);
}

function sourceLine(file, line) {
  const source = sources.get(file);
  if (source === undefined) return null;
  const starts = lineStarts(source.code);
  if (line < 1 || line > starts.length) return null;
  return source.code.slice(starts[line - 1], starts[line]).replace(/[\r\n\u2028\u2029]+$/, '').slice(0, MAX_SOURCE_LINE);
}

// Text that may show a stack, with the names that the runs had.
function withNames(text) {
  if (serial === 1 || !text.includes('#')) return text;
  return text.replace(/#\d+(?=:\d+:\d+)/g, (mark, at) => {
    const before = text.slice(Math.max(0, at - MAX_FRAME), at);
    const line = before.slice(before.lastIndexOf('\n') + 1);
    if (!/^[ \t]+at /.test(line)) return mark;
    const call = line.lastIndexOf(' (');
    const name = call < 0 ? line.replace(/^[ \t]+at (?:async )?/, '') : line.slice(call + 2);
    return names.has(name) ? '' : mark;
  });
}

module.exports = { fileFor, find: (file) => sources.get(file), remember, sourceLine, withNames };
