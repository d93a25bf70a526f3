-- The towers of Hanoi.   belljar run examples/hanoi.lua -- 4
local discs = tonumber(arg[1]) or 3
local moves = 0

local function move(count, from, to, via)
  if count == 0 then return end
  move(count - 1, from, via, to)
  moves = moves + 1
  print(("disc %d from %s to %s"):format(count, from, to))
  move(count - 1, via, to, from)
end

move(discs, "A", "C", "B")
print(("%d moves for %d discs"):format(moves, discs))
