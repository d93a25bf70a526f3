'use strict';
// The code of one run, ready to be run: compiled scripts, or the error that says why not.

const { Reflect, Set } = globalThis;
const { describeSyntax } = require('./errors.js');
const { lineStarts } = require('./edits.js');
const { canRewrite, rewrite } = require('./rewrite.js');
const { fileFor, remember } = require('./sources.js');

const WRAPPER = '(async()=>{';

const declared = new Set(); // every name that was ever declared at the top of a run
let constants = []; // those whose latest declaration was `const` or `import`

function compile(text, file) {
  return new host.Script(text, { __proto__: null, filename: file, importModuleDynamically: host.importer });
}

function runScript(script) {
  return Reflect.apply(host.runInThisContext, script, [{ __proto__: null, displayErrors: false }]);
}

// V8 tells the place of a syntax error only in the first lines of its stack: file:line, the line, a mark below the column.
function placeOfSyntaxError(error, file) {
  const lines = error.stack.split('\n');
  const place = /:(\d+)$/.exec(lines[0]);
  if (!place || !lines[0].startsWith(file)) return null;
  const column = (lines[2] || '').indexOf('^') + 1;
  return { message: error.message, line: +place[1], column: column || lines[1].length + 1 };
}

function tryCompile(text, file) {
  try {
    return { script: compile(text, file) };
  } catch (error) {
    return { error };
  }
}

// Of what is said about a syntax error, the best: V8's word about the code as a script, unless what it minds is allowed
// here; then its word about the code as a function's body; then the parser's.
function explain(file, code, plain, wrapped, refusal) {
  const first = placeOfSyntaxError(plain, file);
  if (first !== null && !/\bawait\b|\breturn\b|\bimport\b|'export'/.test(first.message)) return first;
  const second = wrapped ? placeOfSyntaxError(wrapped, file) : null;
  if (second !== null && !/\bimport\b|'export'/.test(second.message)) {
    const starts = lineStarts(code);
    if (second.line > starts.length) {
      return { message: 'Unexpected end of input', line: starts.length, column: code.length - starts[starts.length - 1] + 1 };
    }
    return { ...second, column: second.line === 1 ? second.column - WRAPPER.length : second.column };
  }
  if (refusal === null) return first || { message: plain.message, line: 1, column: 1 };
  return { message: refusal.message.replace(/ \(\d+:\d+\)$/, ''), line: refusal.loc.line, column: refusal.loc.column + 1 };
}

// What the parser does not understand: V8 has the last word, and explains better.
function withoutRewriting(file, name, code, refusal) {
  const plain = tryCompile(code, file);
  if (plain.script) {
    remember(file, name, code, (line, column) => ({ line, column }));
    return { file, scripts: [plain.script], waits: false, boxed: false, hasValue: true, names: [] };
  }
  const wrapped = tryCompile(`${WRAPPER}${code}\n})()`, file);
  if (wrapped.script) {
    remember(file, name, code, (line, column) => ({ line, column: line === 1 ? column - WRAPPER.length : column }));
    return { file, scripts: [wrapped.script], waits: true, boxed: false, hasValue: false, names: [] };
  }
  return { file, error: describeSyntax(file, name, code, explain(file, code, plain.error, wrapped.error, refusal)) };
}

// `kept`: what the code declares stays for later runs.
function prepare(name, code, kept) {
  const file = fileFor(name);
  let plan;
  if (!canRewrite()) return withoutRewriting(file, name, code, null);
  try {
    plan = rewrite(code, kept, constants);
  } catch (error) {
    return withoutRewriting(file, name, code, error.loc ? error : null);
  }
  remember(file, name, code, plan.locate);
  const scripts = [];
  for (const text of [plan.first, plan.main]) {
    if (text === null) continue;
    const { script, error } = tryCompile(text, file);
    if (!script) {
      // Such as a regular expression or a `for (async of` that only V8 refuses.
      const found = placeOfSyntaxError(error, file) || { message: error.message, line: 1, column: 1 };
      return { file, error: describeSyntax(file, name, code, { ...found, ...plan.locate(found.line, found.column) }) };
    }
    scripts.push(script);
  }
  if (kept && plan.constants !== null) constants = plan.constants;
  return { file, scripts, waits: plan.waits, boxed: plan.boxed, hasValue: plan.hasValue, names: plan.names };
}

// Makes the names that were never declared before. One that V8 refuses (`undefined`) fails later, in the code.
function declare(names) {
  const fresh = names.filter((name) => !declared.has(name));
  for (const name of fresh) declared.add(name);
  if (fresh.length === 0) return;
  try {
    runScript(compile(`let ${fresh.join()}`, 'declarations'));
  } catch {
    for (const name of fresh) {
      try {
        runScript(compile(`let ${name}`, 'declarations'));
      } catch {
        // Already there in a way of its own.
      }
    }
  }
}

// Runs the scripts. Gives the value of the last: for one that waits, the promise of it in a box.
function execute(program) {
  declare(program.names);
  let result;
  for (const script of program.scripts) result = runScript(script);
  return result;
}

// Puts a value under a name where the code will find it.
function setGlobal(name, value) {
  if (declared.has(name)) {
    runScript(compile(`(value) => { ${name} = value; }`, 'globals'))(value);
    constants = constants.filter((other) => other !== name);
  } else {
    Reflect.defineProperty(host.global, name, { value, writable: true, configurable: true, enumerable: true });
  }
}

module.exports = { execute, prepare, setGlobal };
