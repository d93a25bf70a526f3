'use strict';
// Frames over descriptor 3: a 4-byte little-endian length, then that many bytes of JSON.

const { Atomics, Int32Array, JSON, Object, Reflect, SharedArrayBuffer, Uint8Array } = globalThis;

const CHANNEL = 3;
const MAX_FRAME_IN = 72 * 1024 * 1024;
const MAX_FRAME_OUT = 16 * 1024 * 1024;

const napping = new Int32Array(new SharedArrayBuffer(4));
let pending = new Uint8Array(0); // what came and is not yet a whole frame
let filled = 0;
let handle = null;
let onFrame = null;
let onEnd = null;
let lock = { acquire() {}, release() {} };

// Writes all of it, also to a descriptor that does not block.
function writeAll(descriptor, bytes) {
  let at = 0;
  let waits = 0;
  while (at < bytes.length) {
    try {
      at += host.writeSync(descriptor, bytes, at, bytes.length - at);
      waits = 0;
    } catch (error) {
      if (error.code !== 'EAGAIN') throw error;
      waits += 1;
      Atomics.wait(napping, 0, 0, waits < 10 ? 0.2 : 2);
    }
  }
}

// Half a surrogate pair has no UTF-8. JSON.stringify writes it as an escape, which other parsers refuse.
function toJson(value) {
  const text = JSON.stringify(value);
  if (!text.includes('\\ud')) return text;
  return text.replace(/\\\\|\\ud[0-9a-f]{3}/g, (found) => (found === '\\\\' ? found : '\ufffd'));
}

// UTF-8 in an array of the kernel's own context: the properties of the main context's arrays can be replaced.
function encode(text) {
  return new Uint8Array(host.encode(text));
}

// False when the frame is too long to be sent. When nobody is there to read it the process ends.
function send(frame) {
  const body = encode(toJson(frame));
  if (body.length > MAX_FRAME_OUT) return false;
  const bytes = new Uint8Array(4 + body.length);
  bytes[0] = body.length & 255;
  bytes[1] = (body.length >>> 8) & 255;
  bytes[2] = (body.length >>> 16) & 255;
  bytes[3] = body.length >>> 24;
  bytes.set(body, 4);
  lock.acquire();
  try {
    writeAll(CHANNEL, bytes);
  } catch {
    Reflect.apply(host.reallyExit, host.process, [74]);
  } finally {
    lock.release();
  }
  return true;
}

function keep(chunk) {
  if (filled + chunk.length > pending.length) {
    let size = pending.length * 2;
    if (size < filled + chunk.length) size = filled + chunk.length;
    const larger = new Uint8Array(size);
    larger.set(pending.subarray(0, filled));
    pending = larger;
  }
  pending.set(chunk, filled);
  filled += chunk.length;
}

// The next whole frame, or null. It is made of the main context's objects, because parts of it go to the code.
function next() {
  if (filled < 4) return null;
  const length = (pending[0] | (pending[1] << 8) | (pending[2] << 16) | (pending[3] << 24)) >>> 0;
  if (length > MAX_FRAME_IN) throw new RangeError('frame is too long');
  if (filled < 4 + length) return null;
  const frame = host.parse(host.decode(pending.subarray(4, 4 + length)));
  pending = pending.slice(4 + length, filled);
  filled = pending.length;
  return frame;
}

// A field of a frame, whatever the code has put into Object.prototype.
function field(frame, name, otherwise = null) {
  return Object.hasOwn(frame, name) ? frame[name] : otherwise;
}

// Hands out the frames that are whole; what follows a frame whose handling was stopped is handed out by the next call.
function deliver(chunk) {
  for (let more = chunk; ; more = null) {
    let frame;
    lock.acquire();
    try {
      if (more !== null) keep(more);
      frame = next();
    } catch {
      return onEnd(76);
    } finally {
      lock.release();
    }
    if (frame === null) return undefined;
    onFrame(frame);
  }
}

function listen(frameHandler, endHandler) {
  onFrame = frameHandler;
  onEnd = endHandler;
  handle = host.channelHandle(CHANNEL);
  handle.onread = (buffer) => (buffer ? deliver(new Uint8Array(buffer)) : onEnd(0));
  handle.readStart();
}

// Waits, without the event loop, until something has come in. False at the end of the channel.
function receiveNow() {
  const chunk = new Uint8Array(65536);
  for (;;) {
    try {
      const count = host.readSync(CHANNEL, chunk, 0, chunk.length, null);
      if (count === 0) return false;
      deliver(chunk.subarray(0, count));
      return true;
    } catch (error) {
      if (error.code !== 'EAGAIN') return false;
      Atomics.wait(napping, 0, 0, 1);
    }
  }
}

module.exports = {
  deliver, encode, field, listen, receiveNow, send, toJson, writeAll, MAX_FRAME_OUT,
  protectWith(guard) { lock = guard; },
  letGo() { handle.unref(); },
};
