'use strict';
// A text changed in places, and the way back from a position in the result to one in the original.

const LINE_END = /\r\n|[\n\r\u2028\u2029]/g;

function blanked(text) {
  return text.replace(/[^\r\n\u2028\u2029]/g, ' ');
}

// Where each line of a text starts.
function lineStarts(text) {
  const starts = [0];
  for (const found of text.matchAll(LINE_END)) starts.push(found.index + found[0].length);
  return starts;
}

class Edits {
  constructor(text) {
    this.text = text;
    this.list = [];
    this.pieces = []; // { start, end, into }: parts of the original for the script that runs 'first', or for 'both'
  }

  // Replaces [start, end) of the original.
  replace(start, end, text, into = null) {
    this.list.push({ start, end, text, into, order: this.list.length });
  }

  insert(at, text) { this.replace(at, at, text); }

  blank(start, end) { this.replace(start, end, blanked(this.text.slice(start, end))); }

  // At the very beginning, before whatever else is inserted there.
  begin(text) { this.list.push({ start: 0, end: 0, text, into: 'main', order: -1 }); }

  // At the very end, after whatever else is inserted there.
  finish(text) { this.list.push({ start: this.text.length, end: this.text.length, text, into: 'main', order: Infinity }); }

  // Pieces are given in the order of the text, and do not overlap.
  moveFirst(start, end, before, after) {
    this.pieces.push({ start, end, into: 'first' });
    this.replace(start, start, before, 'first');
    this.replace(end, end, after, 'first');
  }

  share(start, end) { this.pieces.push({ start, end, into: 'both' }); }

  // { main, first, locate }: the result twice, each with the other's parts blanked, so that a position means the same in
  // both. `first` is null when nothing was moved there.
  render() {
    this.list.sort((a, b) => a.start - b.start || a.end - b.end || a.order - b.order);
    const parts = [];
    let piece = 0;
    let at = 0;
    const pieceAt = (position) => {
      while (piece < this.pieces.length && this.pieces[piece].end <= position) piece += 1;
      return this.pieces[piece];
    };
    const keepUntil = (end) => {
      while (at < end) {
        const near = pieceAt(at);
        const inside = near !== undefined && near.start <= at;
        const edge = near === undefined ? end : (inside ? near.end : near.start);
        const stop = edge < end ? edge : end;
        parts.push({ start: at, length: stop - at, text: this.text.slice(at, stop), into: inside ? near.into : 'main' });
        at = stop;
      }
    };
    for (const edit of this.list) {
      keepUntil(edit.start);
      const near = pieceAt(edit.start);
      const into = edit.into || (near !== undefined && near.start <= edit.start ? near.into : 'main');
      parts.push({ start: edit.start, length: edit.end - edit.start, text: edit.text, into });
      at = edit.end;
    }
    keepUntil(this.text.length);
    const text = (other) => parts.map((part) => (part.into === other ? blanked(part.text) : part.text)).join('');
    const main = text('first');
    const moved = this.pieces.some((one) => one.into === 'first');
    return { main, first: moved ? text('main') : null, locate: locator(this.text, main, parts) };
  }
}

// Lines and columns count from 1.
function locator(original, result, parts) {
  return (line, column) => {
    const offset = (lineStarts(result)[line - 1] ?? result.length) + column - 1;
    let at = 0;
    let found = original.length;
    for (const part of parts) {
      if (offset < at + part.text.length) {
        found = part.start + (part.length === part.text.length ? offset - at : 0);
        break;
      }
      at += part.text.length;
    }
    const starts = lineStarts(original).filter((start) => start <= found);
    return { line: starts.length, column: found - starts[starts.length - 1] + 1 };
  };
}

module.exports = { Edits, lineStarts };
