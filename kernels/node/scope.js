'use strict';
// What the rewriting needs to know of a syntax tree: who declares which names, and what happens outside of functions.

const { Array, Object, Set } = globalThis;

const FUNCTIONS = new Set(['FunctionDeclaration', 'FunctionExpression', 'ArrowFunctionExpression', 'StaticBlock', 'PropertyDefinition']);
const BLOCKS = new Set(['BlockStatement', 'ForStatement', 'ForInStatement', 'ForOfStatement', 'SwitchStatement', 'CatchClause',
  'ClassDeclaration', 'ClassExpression']);

function forEachChild(node, visit) {
  for (const key of Object.keys(node)) {
    const child = node[key];
    if (Array.isArray(child)) {
      for (const item of child) if (item && typeof item.type === 'string') visit(item);
    } else if (child && typeof child.type === 'string') {
      visit(child);
    }
  }
}

// The identifiers that a pattern binds or assigns to: [{ node, shorthand }].
function patternTargets(pattern, found = [], shorthand = false) {
  switch (pattern.type) {
    case 'Identifier': found.push({ node: pattern, shorthand }); break;
    case 'ObjectPattern':
      for (const item of pattern.properties) {
        if (item.type === 'RestElement') patternTargets(item.argument, found);
        else patternTargets(item.value, found, item.shorthand);
      }
      break;
    case 'ArrayPattern':
      for (const item of pattern.elements) if (item) patternTargets(item, found);
      break;
    case 'AssignmentPattern': patternTargets(pattern.left, found, shorthand); break;
    case 'RestElement': patternTargets(pattern.argument, found); break;
    default: // a member of something
  }
  return found;
}

function patternNames(pattern) {
  return patternTargets(pattern).map((target) => target.node.name);
}

function declarationNames(declaration) {
  return declaration.declarations.flatMap((item) => patternNames(item.id));
}

// Names that `var` brings to the enclosing function from anywhere inside `node`.
function varNames(node, found = new Set()) {
  if (node.type === 'VariableDeclaration' && node.kind === 'var') for (const name of declarationNames(node)) found.add(name);
  forEachChild(node, (child) => { if (!FUNCTIONS.has(child.type)) varNames(child, found); });
  return found;
}

// Names that statements declare in their own block.
function lexicalNames(statements, found) {
  for (const statement of statements) {
    if (statement.type === 'VariableDeclaration' && statement.kind !== 'var') {
      for (const name of declarationNames(statement)) found.add(name);
    } else if ((statement.type === 'FunctionDeclaration' || statement.type === 'ClassDeclaration') && statement.id) {
      found.add(statement.id.name);
    }
  }
}

function namesOfBlock(node) {
  const names = new Set();
  switch (node.type) {
    case 'BlockStatement': lexicalNames(node.body, names); break;
    case 'ForStatement': if (node.init) lexicalNames([node.init], names); break;
    case 'ForInStatement':
    case 'ForOfStatement': lexicalNames([node.left], names); break;
    case 'SwitchStatement': for (const one of node.cases) lexicalNames(one.consequent, names); break;
    case 'CatchClause': if (node.param) for (const name of patternNames(node.param)) names.add(name); break;
    default: if (node.id) names.add(node.id.name); // a class knows itself by name
  }
  return names;
}

function namesOfFunction(node) {
  const names = new Set();
  if (node.type === 'FunctionExpression' && node.id) names.add(node.id.name);
  for (const parameter of node.params || []) for (const name of patternNames(parameter)) names.add(name);
  for (const part of Array.isArray(node.body) ? node.body : [node.body]) if (part) varNames(part, names);
  return names;
}

// One walk over the whole program. Of the result, `returns`, `vars` and `waits` are about what is outside of functions;
// `metas` and `targets` (identifiers of the global scope that are assigned to) are about all of it.
function survey(program) {
  const found = { waits: false, returns: [], vars: [], heads: new Set(), metas: [], targets: [] };
  const scopes = [];
  const assigned = (pattern) => {
    for (const target of patternTargets(pattern)) {
      if (!scopes.some((names) => names.has(target.node.name))) found.targets.push(target);
    }
  };
  const visit = (node, inFunction) => {
    const isFunction = FUNCTIONS.has(node.type);
    const scoped = isFunction || BLOCKS.has(node.type);
    if (scoped) scopes.push(isFunction ? namesOfFunction(node) : namesOfBlock(node));
    switch (node.type) {
      case 'AwaitExpression': if (!inFunction) found.waits = true; break;
      case 'ReturnStatement': if (!inFunction) found.returns.push(node); break;
      case 'VariableDeclaration': if (!inFunction && node.kind === 'var') found.vars.push(node); break;
      case 'ForStatement': found.heads.add(node.init); break;
      case 'ForInStatement':
      case 'ForOfStatement':
        if (node.await && !inFunction) found.waits = true;
        found.heads.add(node.left);
        if (node.left.type !== 'VariableDeclaration') assigned(node.left);
        break;
      case 'AssignmentExpression': if (!/^(\|\||&&|\?\?)=$/.test(node.operator)) assigned(node.left); break;
      case 'UpdateExpression': assigned(node.argument); break;
      case 'MetaProperty': if (node.meta.name === 'import') found.metas.push(node); break;
      default:
    }
    forEachChild(node, (child) => visit(child, inFunction || isFunction));
    if (scoped) scopes.pop();
  };
  for (const statement of program.body) visit(statement, false);
  return found;
}

module.exports = { declarationNames, survey };
