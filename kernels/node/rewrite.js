'use strict';
// From the code of a run to scripts that V8 can run one after another in one global scope.
//
// V8 refuses `const x` when an earlier script has declared x. So each name is declared once, with `let`, in a script of
// its own, and every declaration at the top of the code becomes an assignment to it:
//     const x = 1, { y } = o;   →   void(x = 1, { y } = o);
//     class A {}                →   A=class A {};
//     function f() {}           →   f=function   () {};        in a script that runs first
//     import a, { b } from 'm'  →   void({default:a,"b":b}=await import("m"));
// With a top-level `await` or `return` the whole is the body of a function. No line is added or removed, and where columns
// move, `locate` maps them back.

const { JSON, Set } = globalThis;
const { Edits } = require('./edits.js');
const { declarationNames, survey } = require('./scope.js');

const META = 'globalThis[Symbol.for("belljar.meta")]';
const CONSTANT = 'globalThis[Symbol.for("belljar.constant")].';
const OPTIONS = {
  ecmaVersion: 'latest', allowAwaitOutsideFunction: true, allowReturnOutsideFunction: true,
  allowImportExportEverywhere: true, allowHashBang: true,
};
let parser = null;

// `kept`: the run's declarations outlive it. Otherwise the code stays as it is, in a function, where V8 is fastest.
class Rewriting {
  constructor(code, kept, constants) {
    this.code = code;
    this.kept = kept;
    this.constants = new Set(constants);
    this.declared = new Set();
    this.imports = false;
    this.edits = new Edits(code);
  }

  run() {
    const program = parser.parse(this.code, OPTIONS);
    const found = survey(program);
    if (this.code.startsWith('#!')) this.edits.blank(0, this.code.search(/[\r\n\u2028\u2029]|$/));
    for (const statement of program.body) {
      if (statement.directive) this.edits.share(statement.start, statement.end);
      this.statement(statement);
    }
    if (this.kept) {
      for (const declaration of found.vars) this.nestedVar(declaration, found.heads.has(declaration));
      this.constantTargets(found.targets);
    }
    for (const node of found.metas) this.edits.replace(node.start, node.end, META);
    const waits = found.waits || this.imports;
    const boxed = waits || found.returns.length > 0 || !this.kept;
    const last = program.body.filter((item) => item.type !== 'EmptyStatement' && item.type !== 'FunctionDeclaration').pop();
    const hasValue = last !== undefined && last.type === 'ExpressionStatement';
    if (boxed) this.box(waits, found.returns, hasValue ? last : null);
    return {
      ...this.edits.render(), waits, boxed, hasValue: hasValue || found.returns.length > 0,
      names: [...this.declared], constants: [...this.constants],
    };
  }

  // The body of a function that returns [value]: in a box, so that a promise is not waited for by accident.
  box(waits, returns, last) {
    this.edits.begin(waits ? '(async()=>{' : '(()=>{');
    this.edits.finish('\n})()');
    for (const node of returns) {
      if (node.argument) this.wrap(node.start + 'return'.length, node, '[(', ')]');
    }
    if (last !== null) this.wrap(last.start, last, 'return[(', ')]');
  }

  // Around a statement from `start`, before its semicolon.
  wrap(start, statement, before, after) {
    this.edits.insert(start, before);
    this.edits.insert(this.code[statement.end - 1] === ';' ? statement.end - 1 : statement.end, after);
  }

  declare(name, constant) {
    this.declared.add(name);
    if (constant) this.constants.add(name);
    else this.constants.delete(name);
  }

  statement(node) {
    switch (node.type) {
      case 'ImportDeclaration': return this.importing(node);
      case 'ExportAllDeclaration':
      case 'ExportNamedDeclaration':
      case 'ExportDefaultDeclaration': return this.exporting(node);
      default: return this.kept ? this.declaration(node) : undefined;
    }
  }

  declaration(node) {
    if (node.type === 'VariableDeclaration') {
      for (const name of declarationNames(node)) this.declare(name, node.kind === 'const');
      if (node.kind !== 'var') this.assignment(node, 'void 0'); // those with `var` are done with the nested ones
    } else if (node.type === 'ClassDeclaration') {
      this.declare(node.id.name, false);
      this.edits.insert(node.start, `${node.id.name}=`);
      this.edits.insert(node.end, ';');
    } else if (node.type === 'FunctionDeclaration') {
      this.declare(node.id.name, false);
      this.edits.moveFirst(node.start, node.end, `${node.id.name}=`, ';');
      this.edits.blank(node.id.start, node.id.end);
    }
  }

  // `let a = 1, b` → `void(a = 1, b=void 0);`
  assignment(node, initial) {
    this.edits.replace(node.start, node.start + node.kind.length, 'void(');
    for (const item of node.declarations) if (!item.init && initial) this.edits.insert(item.id.end, `=${initial}`);
    this.edits.insert(node.declarations[node.declarations.length - 1].end, ')');
    if (this.code[node.end - 1] !== ';') this.edits.insert(node.end, ';');
  }

  nestedVar(node, isHead) {
    for (const name of declarationNames(node)) this.declare(name, false);
    if (isHead) this.edits.blank(node.start, node.start + node.kind.length);
    else this.assignment(node, null);
  }

  constantTargets(targets) {
    for (const { node, shorthand } of targets) {
      if (this.constants.has(node.name)) this.edits.insert(node.start, (shorthand ? `${node.name}:` : '') + CONSTANT);
    }
  }

  importing(node) {
    this.imports = true;
    const parts = [];
    let whole = null;
    for (const item of node.specifiers) {
      if (this.kept) this.declare(item.local.name, true);
      if (item.type === 'ImportNamespaceSpecifier') whole = item.local.name;
      else parts.push(`${item.type === 'ImportDefaultSpecifier' ? 'default' : key(item.imported)}:${item.local.name}`);
    }
    const [open, close] = this.kept ? ['void(', ')'] : ['const ', ''];
    let text = `await ${this.importCall(node)}`;
    if (whole !== null) text = `${open}${whole}=${text}${close}`;
    if (whole !== null && parts.length > 0) text += `;${open}{${parts.join()}}=${whole}${close}`;
    if (whole === null && parts.length > 0) text = `${open}{${parts.join()}}=${text}${close}`;
    this.replaceLines(node, `${text};`);
  }

  importCall(node) {
    const attributes = (node.attributes || []).map((item) => `${key(item.key)}:${JSON.stringify(item.value.value)}`);
    const options = attributes.length > 0 ? `,{with:{${attributes.join()}}}` : '';
    return `import(${JSON.stringify(node.source.value)}${options})`;
  }

  // There is nobody to export to: what is exported is only run and declared.
  exporting(node) {
    if (node.source) {
      this.imports = true;
      this.replaceLines(node, `await ${this.importCall(node)};`);
      return;
    }
    const inner = node.declaration;
    if (!inner) {
      this.edits.blank(node.start, node.end);
    } else if (node.type === 'ExportNamedDeclaration' || inner.id) {
      this.edits.blank(node.start, inner.start);
      this.statement(inner);
    } else {
      this.edits.blank(node.start, inner.start);
      this.wrap(inner.start, node, 'void(', ')');
      if (this.code[node.end - 1] !== ';') this.edits.insert(node.end, ';');
    }
  }

  replaceLines(node, text) {
    const lines = this.code.slice(node.start, node.end).match(/\r\n|[\n\r\u2028\u2029]/g) || [];
    this.edits.replace(node.start, node.end, text + lines.join(''));
  }
}

function key(node) {
  return JSON.stringify(node.type === 'Identifier' ? node.name : node.value);
}

// `{a: 1, b: 2}` alone is meant as an object, as in node's REPL, and not as a block.
function objectLiteral(code) {
  if (!/^\s*\{[^]*\}\s*$/.test(code)) return null;
  let program;
  try {
    program = parser.parse(`(${code}\n)`, OPTIONS);
  } catch {
    return null;
  }
  if (program.body.length !== 1 || program.body[0].expression?.type !== 'ObjectExpression') return null;
  const edits = new Edits(code);
  const { waits } = survey(program);
  edits.begin(waits ? '(async()=>{return[(' : '(()=>{return[(');
  edits.finish('\n)]})()');
  return { ...edits.render(), waits, boxed: true, hasValue: true, names: [], constants: null };
}

// Gives { main, first, locate, waits, boxed, hasValue, names, constants }. Throws the parser's SyntaxError.
function rewrite(code, kept, constants) {
  return objectLiteral(code) || new Rewriting(code, kept, constants).run();
}

module.exports = {
  rewrite,
  canRewrite: () => parser !== null,
  useParser(found) { parser = found; },
};
