'use strict';
// Functions of the caller, which the code calls over the channel, and the other names that the kernel puts in.

const { Map, Object, Reflect, Set, Symbol } = globalThis;
const channel = require('./channel.js');
const { toBundle, show } = require('./display.js');
const { setGlobal } = require('./program.js');
const { toData } = require('./values.js');

const MAX_ARGUMENTS = 8 * 1024 * 1024;

// Functions that the code gets are made in its own context.
const inMainContext = host.evaluateHere(`({
  tool: (name, call) => ({ [name](...args) {
    let settle;
    const promise = new Promise((resolve, reject) => { settle = { resolve, reject }; });
    call(args, settle.resolve, settle.reject, promise);
    return promise;
  } })[name],
  display: (show) => {
    const display = (...values) => { for (let at = 0; at < values.length; at += 1) show(values[at]); };
    for (const [name, mime] of [['html', 'text/html'], ['markdown', 'text/markdown'], ['latex', 'text/latex'], ['svg', 'image/svg+xml'],
      ['png', 'image/png'], ['jpeg', 'image/jpeg'], ['json', 'application/json'], ['text', 'text/plain']]) {
      display[name] = (data, label) => show({ [mime]: data }, label);
    }
    return display;
  },
  error: (type, message) => {
    const error = new Error(message);
    Object.defineProperty(error, 'name', { value: type, configurable: true, writable: true, enumerable: false });
    return error;
  },
  constant: () => new Proxy({}, { set() { throw new TypeError('Assignment to constant variable.'); } }),
})`);

const open = new Map(); // number of a call → { name, resolve, reject, promise }
const names = new Set(); // of the tools that are there
let calls = 0;
let currentId = null;

function callTool(name, args, resolve, reject, promise) {
  if (currentId === null) {
    reject(inMainContext.error('Error', `the tool '${name}' can be called only while a run is going on`));
    return;
  }
  const given = toData(args, MAX_ARGUMENTS);
  if (given === undefined) {
    reject(inMainContext.error('TypeError', `the arguments of '${name}' have no JSON form, or too large a one`));
    return;
  }
  calls += 1;
  open.set(calls, { name, resolve, reject, promise });
  channel.send({ op: 'call', id: currentId, call: calls, tool: name, args: given, kwargs: {} });
}

function answer(frame) {
  if (channel.field(frame, 'id', currentId) !== currentId) return;
  const number = channel.field(frame, 'call');
  const call = open.get(number);
  if (call === undefined) return;
  open.delete(number);
  const error = channel.field(frame, 'error');
  if (error === null) {
    Reflect.apply(call.resolve, undefined, [host.given(channel.field(frame, 'value', undefined))]);
  } else {
    const type = `${channel.field(error, 'type', 'Error')}`;
    Reflect.apply(call.reject, undefined, [inMainContext.error(type, `${channel.field(error, 'message', '')}`)]);
  }
}

function install(tools) {
  const before = [...names];
  names.clear();
  for (let at = 0; at < tools.length; at += 1) {
    const name = channel.field(tools[at], 'name');
    if (typeof name !== 'string') continue;
    names.add(name);
    setGlobal(name, inMainContext.tool(name, (...given) => callTool(name, ...given)));
  }
  for (const name of before) if (!names.has(name)) setGlobal(name, undefined);
}

function begin(id, tools) {
  currentId = id;
  calls = 0;
  if (tools !== null) install(tools);
}

// Calls that are still open get no answer any more. Who does not wait for one need not hear of it.
function end() {
  currentId = null;
  const left = [...open.values()];
  open.clear();
  for (const { name, reject, promise } of left) {
    try {
      Reflect.apply(host.then, promise, [undefined, () => {}]);
      Reflect.apply(reject, undefined, [inMainContext.error('Error', `the run was over before the tool '${name}' answered`)]);
    } catch {
      // The code has made something else of promises.
    }
  }
}

function put(globals) {
  for (const name of Object.keys(globals)) setGlobal(name, host.given(globals[name]));
}

function start() {
  const display = inMainContext.display((value, label) => show(currentId, toBundle(value), label));
  Reflect.defineProperty(host.global, 'display', { value: display, writable: true, configurable: true, enumerable: false });
  Reflect.defineProperty(host.global, Symbol.for('belljar.constant'), { value: inMainContext.constant() });
}

module.exports = { answer, begin, end, put, start };
