// The longest Collatz chain below a limit.   belljar run examples/collatz.js -- 10000
const limit = Number(process.argv[2] ?? 100000);
const lengths = new Uint32Array(limit);
lengths[1] = 1;

let best = 1;
for (let start = 2; start < limit; start++) {
  let n = start;
  let steps = 0;
  while (n >= limit || lengths[n] === 0) {
    n = n % 2 === 0 ? n / 2 : 3 * n + 1;
    steps++;
  }
  lengths[start] = lengths[n] + steps;
  if (lengths[start] > lengths[best]) best = start;
}
console.log(`${best} takes ${lengths[best]} terms to reach 1, the most below ${limit}`);
