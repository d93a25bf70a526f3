'use strict';
// Errors of the code, as the engine is told of them: the code's own lines only.

const { Array, Object, String } = globalThis;
const sources = require('./sources.js');
const { cut, nameOf, toText } = require('./values.js');

const MAX_MESSAGE = 16 * 1024;
const MAX_FRAMES = 50;
const MAX_FRAME_TEXT = 1000;
const MAX_CAUSES = 10;

// A property of something the code made. Reading it may throw.
function read(object, name) {
  try {
    return object[name];
  } catch {
    return undefined;
  }
}

function isError(value) {
  if (typeof value !== 'object' || value === null) return false;
  try {
    return host.types.isNativeError(value) || value instanceof host.Error;
  } catch {
    return false;
  }
}

function typeAndMessage(thrown) {
  if (!isError(thrown)) return { type: 'Thrown', message: toText(thrown, MAX_MESSAGE, false) };
  let message = read(thrown, 'message');
  if (typeof message !== 'string') message = '';
  return { type: cut(nameOf(thrown), 200), message: cut(message, MAX_MESSAGE) };
}

// `    at f (file:1:2)`, `    at async file:1:2` → { call, file, line, column }
function parseFrame(text) {
  const found = /^\s+at (?:(.*) \()?(.*?):(\d+):(\d+)\)?$/.exec(text);
  if (!found) return null;
  let [, call = '', file] = found;
  if (call === '' && file.startsWith('async ')) [call, file] = ['async', file.slice(6)];
  return { call, file, line: +found[3], column: +found[4] };
}

// Frames of the code and of files it loaded; not those of node and of the kernel.
function ownFrames(error) {
  const stack = read(error, 'stack');
  if (typeof stack !== 'string') return [];
  const frames = [];
  for (const text of stack.slice(0, 64 * 1024).split('\n')) {
    const frame = text.length > MAX_FRAME_TEXT ? null : parseFrame(text);
    if (frame === null || frame.file.includes(host.kernelDirectory)) continue;
    const source = sources.find(frame.file);
    if (source !== undefined) Object.assign(frame, source.locate(frame.line, frame.column), { name: source.name });
    else if (!/^(\/|file:)/.test(frame.file)) continue;
    if (frames.push(frame) === MAX_FRAMES) break;
  }
  return frames;
}

function showFrame(frame) {
  const place = `${frame.name ?? frame.file}:${frame.line}:${frame.column}`;
  if (frame.call === '') return `    at ${place}`;
  return frame.call === 'async' ? `    at async ${place}` : `    at ${frame.call} (${place})`;
}

// Where it happened, the line itself, and a mark below the column: as node prints it.
function excerpt({ file, name, line, column }) {
  const text = sources.sourceLine(file, line);
  if (text === null) return '';
  const mark = column <= text.length + 1 ? `${text.slice(0, column - 1).replace(/[^\t]/g, ' ')}^\n` : '';
  return `${name}:${line}\n${text}\n${mark}\n`;
}

// The chain of `cause`, and the members of an AggregateError.
function causesOf(error) {
  const causes = [];
  const seen = [error];
  const visit = (value) => {
    if (value === undefined || causes.length >= MAX_CAUSES || seen.includes(value)) return;
    seen.push(value);
    causes.push(value);
    if (isError(value)) follow(value);
  };
  const follow = (value) => {
    const members = read(value, 'errors');
    const count = Array.isArray(members) ? read(members, 'length') : 0;
    for (let at = 0; at < count && at < MAX_CAUSES; at += 1) visit(read(members, String(at)));
    visit(read(value, 'cause'));
  };
  if (isError(error)) follow(error);
  return causes;
}

function headline({ type, message }) {
  return message === '' ? type : `${type}: ${message}`;
}

// `file` is the run's: the line of the error is the innermost one in its code.
function describe(thrown, file) {
  const told = typeAndMessage(thrown);
  const frames = isError(thrown) ? ownFrames(thrown) : [];
  const place = frames.find((frame) => frame.file === file);
  const shown = place || frames.find((frame) => frame.name !== undefined);
  const lines = [];
  if (shown) lines.push(excerpt(shown));
  lines.push(`${headline(told)}\n`, ...frames.map((frame) => `${showFrame(frame)}\n`));
  const causes = [];
  for (const cause of causesOf(thrown)) {
    const one = typeAndMessage(cause);
    causes.push(one);
    lines.push(`  caused by ${headline(one)}\n`);
    if (isError(cause)) lines.push(...ownFrames(cause).slice(0, 10).map((frame) => `  ${showFrame(frame)}\n`));
  }
  return {
    ...told,
    traceback: cut(lines.join(''), 4 * MAX_MESSAGE),
    line: place ? place.line : null,
    column: place ? place.column : null,
    source: place ? sources.sourceLine(place.file, place.line) : null,
    causes,
  };
}

// `found` is what V8 or the parser says: { message, line, column }.
function describeSyntax(file, name, code, found) {
  sources.remember(file, name, code, (line, column) => ({ line, column }));
  return {
    type: 'SyntaxError',
    message: cut(found.message, MAX_MESSAGE),
    traceback: cut(`${excerpt({ file, name, line: found.line, column: found.column })}SyntaxError: ${found.message}\n`, 4 * MAX_MESSAGE),
    line: found.line,
    column: found.column,
    source: sources.sourceLine(file, found.line),
    causes: [],
  };
}

module.exports = { describe, describeSyntax };
