'use strict';
// Values of the code as JSON, and as text. What may be called here (getters, toJSON, custom inspection) is the code's:
// it may throw, and it may never end; then the run's deadline ends it.

const { Array, BigInt, Boolean, DataView, Date, JSON, Map, Math, Number, Object, Reflect, RegExp, Set, String, Uint8Array } = globalThis;
const { encode } = require('./channel.js');
const { withNames } = require('./sources.js');
const { types } = host;

const TypedArray = Object.getPrototypeOf(Uint8Array);
const MAX_DEPTH = 100;
const MANY_KEYS = 10000;
const FLOATS = { NaN: 'nan', Infinity: 'inf', '-Infinity': '-inf' };

// Thrown when a value has no JSON form: too large, too deep, with itself inside, or not of a kind that has one.
const NONE = { reason: 'no JSON form' };

class Conversion {
  constructor(limit) {
    this.left = limit;
    this.path = [];
  }

  // Counts characters, which are never more than the bytes they become.
  spend(count) {
    this.left -= count;
    if (this.left < 0) throw NONE;
  }

  // undefined stands for "leave it out".
  convert(value) {
    switch (typeof value) {
      case 'string':
        this.spend(value.length + 2);
        return value;
      case 'number':
        this.spend(1);
        return Number.isFinite(value) ? value : { $float: FLOATS[value] };
      case 'boolean':
        this.spend(4);
        return value;
      case 'bigint': {
        const digits = `${value}`;
        this.spend(digits.length);
        return Number.isSafeInteger(Number(value)) ? Number(value) : { $int: digits };
      }
      case 'object':
        this.spend(2);
        return value === null ? null : this.inside(value);
      default:
        return undefined;
    }
  }

  inside(value) {
    if (this.path.length >= MAX_DEPTH || this.path.includes(value)) throw NONE;
    this.path.push(value);
    const result = this.object(value);
    this.path.pop();
    return result;
  }

  object(value) {
    if (types.isDate(value)) {
      const time = Reflect.apply(Date.prototype.getTime, value, []);
      return Number.isNaN(time) ? null : this.convert(new Date(time).toISOString());
    }
    if (types.isRegExp(value)) return this.convert(Reflect.apply(RegExp.prototype.toString, value, []));
    if (types.isBoxedPrimitive(value)) return this.convert(unbox(value));
    if (types.isAnyArrayBuffer(value) || types.isArrayBufferView(value)) return this.bytes(value);
    if (types.isMap(value)) return this.map(value);
    if (types.isSet(value)) {
      const members = [];
      Reflect.apply(Set.prototype.forEach, value, [(member) => members.push(this.element(member))]);
      return members;
    }
    if (types.isPromise(value) || types.isWeakMap(value) || types.isWeakSet(value) || types.isGeneratorObject(value)) {
      return undefined;
    }
    const { toJSON } = value;
    if (typeof toJSON === 'function') {
      const given = Reflect.apply(toJSON, value, ['']);
      return given === value ? this.properties(value) : this.convert(given);
    }
    if (types.isNativeError(value)) return { type: this.convert(nameOf(value)), message: this.convert(`${value.message}`) };
    if (Array.isArray(value)) {
      const elements = [];
      this.spend(value.length);
      for (let at = 0; at < value.length; at += 1) elements.push(this.element(value[at]));
      return elements;
    }
    return this.properties(value);
  }

  element(value) {
    const converted = this.convert(value);
    return converted === undefined ? null : converted;
  }

  properties(value) {
    const pairs = [];
    for (const key of Object.keys(value)) {
      const converted = this.convert(value[key]);
      if (converted === undefined) continue;
      this.spend(key.length + 4);
      pairs.push([key, converted]);
    }
    return asObject(pairs);
  }

  map(value) {
    const pairs = [];
    let named = true;
    Reflect.apply(Map.prototype.forEach, value, [(member, key) => {
      if (typeof key !== 'string') named = false;
      pairs.push([this.element(key), this.element(member)]);
    }]);
    return named ? asObject(pairs) : { $dict: pairs };
  }

  // Bytes as base64, numbers of other widths as numbers.
  bytes(value) {
    if (!types.isTypedArray(value) || types.isUint8Array(value) || types.isUint8ClampedArray(value)) return this.base64(bytesOf(value));
    const length = getter(TypedArray, 'length', value);
    const elements = [];
    this.spend(length);
    for (let at = 0; at < length; at += 1) elements.push(this.element(value[at]));
    return elements;
  }

  base64(bytes) {
    this.spend(Math.ceil(bytes.length / 3) * 4 + 14);
    return { $bytes: toBase64(bytes) };
  }
}

// An only key that begins with $ would look like one of the marks.
function asObject(pairs) {
  if (pairs.length === 1 && pairs[0][0].startsWith('$')) return { $dict: pairs };
  const result = { __proto__: null };
  for (const [key, member] of pairs) result[key] = member;
  return result;
}

function unbox(value) {
  if (types.isNumberObject(value)) return Reflect.apply(Number.prototype.valueOf, value, []);
  if (types.isStringObject(value)) return Reflect.apply(String.prototype.valueOf, value, []);
  if (types.isBooleanObject(value)) return Reflect.apply(Boolean.prototype.valueOf, value, []);
  if (types.isBigIntObject(value)) return Reflect.apply(BigInt.prototype.valueOf, value, []);
  return undefined;
}

// A property that is a getter of the language, whatever the object itself says.
function getter(type, name, value) {
  return Reflect.apply(Reflect.getOwnPropertyDescriptor(type.prototype, name).get, value, []);
}

// The bytes of any buffer or view.
function bytesOf(value) {
  if (types.isAnyArrayBuffer(value)) return new Uint8Array(value);
  const type = types.isDataView(value) ? DataView : TypedArray;
  return new Uint8Array(getter(type, 'buffer', value), getter(type, 'byteOffset', value), getter(type, 'byteLength', value));
}

function toBase64(bytes) {
  return Reflect.apply(host.base64, bytes, [0, bytes.length]);
}

function nameOf(error) {
  try {
    const { name, constructor } = error;
    const own = constructor && constructor.name;
    if (name === 'Error' && typeof own === 'string' && own !== '') return own;
    if (typeof name === 'string' && name !== '') return name;
    if (typeof own === 'string' && own !== '') return own;
  } catch {
    // A getter of the code: the general name will do.
  }
  return 'Error';
}

// The value as plain data that JSON can hold in `limit` bytes, or undefined.
function toData(value, limit) {
  try {
    const data = new Conversion(limit).convert(value);
    if (data === undefined) return undefined;
    return encode(JSON.stringify(data)).length <= limit ? data : undefined;
  } catch {
    return undefined;
  }
}

// A cut that does not leave half a character.
function cut(text, limit) {
  if (text.length * 3 <= limit) return text;
  const bytes = encode(text);
  if (bytes.length <= limit) return text;
  let end = limit;
  while (end > 0 && (bytes[end] & 0xc0) === 0x80) end -= 1;
  return host.decode(bytes.subarray(0, end));
}

// As node's own REPL would show it. Of something large only the surface: the rest would be cut anyway.
// Frames of the kernel, which has called the code, and of node between the two. What follows the last one stays, as in `{ code: 3 }`.
const directory = host.kernelDirectory.replace(/[\\^$.*+?()[\]{}|]/g, '\\$&');
const KERNEL_FRAMES = new RegExp(`(?:\\n *at [^\\n]*\\(node:vm:[0-9:]+\\))?\\n *at [^\\n]*${directory}/\\w+\\.js:\\d+:\\d+\\)?`, 'g');

// Text that may show an error, without those, and with the names that the runs had.
function ownText(text) {
  return withNames(text.includes(host.kernelDirectory) ? text.replace(KERNEL_FRAMES, '') : text);
}

function toText(value, limit, large) {
  const options = {
    __proto__: null, depth: large ? 1 : 4, maxArrayLength: 100, maxStringLength: limit, breakLength: 100, compact: 3,
  };
  try {
    if (typeof value === 'object' && value !== null && !types.isProxy(value)) {
      const count = Object.keys(value).length;
      if (count > MANY_KEYS && !Array.isArray(value) && !types.isTypedArray(value)) return `[Object with ${count} keys]`;
    }
    return cut(ownText(host.inspect(value, options)), limit);
  } catch {
    return cut(`[${typeof value} that cannot be shown]`, limit);
  }
}

module.exports = { bytesOf, cut, nameOf, ownText, toBase64, toData, toText };
