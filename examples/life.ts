// Conway's game of life: a glider, some generations on.   belljar run examples/life.ts -- 12
type Cell = `${number},${number}`;

const at = (x: number, y: number): Cell => `${x},${y}`;
const around = (cell: Cell): Cell[] => {
  const [x, y] = cell.split(",").map(Number);
  return [-1, 0, 1].flatMap((dx) => [-1, 0, 1].map((dy) => at(x + dx, y + dy))).filter((other) => other !== cell);
};

function step(alive: Set<Cell>): Set<Cell> {
  const neighbours = new Map<Cell, number>();
  for (const cell of alive) {
    for (const other of around(cell)) neighbours.set(other, (neighbours.get(other) ?? 0) + 1);
  }
  return new Set([...neighbours].filter(([cell, n]) => n === 3 || (n === 2 && alive.has(cell))).map(([cell]) => cell));
}

const generations = Number(process.argv[2] ?? 8);
let alive = new Set<Cell>([at(1, 0), at(2, 1), at(0, 2), at(1, 2), at(2, 2)]);
for (let i = 0; i < generations; i++) alive = step(alive);

for (let y = 0; y < 6; y++) {
  console.log([0, 1, 2, 3, 4, 5].map((x) => (alive.has(at(x, y)) ? "#" : ".")).join(" "));
}
console.log(`${alive.size} cells alive after ${generations} generations`);
