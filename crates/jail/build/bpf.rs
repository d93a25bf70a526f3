//! Classic BPF: its instructions, and the search for a number among ranges.

/// `struct sock_filter`.
#[derive(Clone, PartialEq, Eq)]
pub struct Instruction {
    pub code: u16,
    pub jt: u8,
    pub jf: u8,
    pub k: u32,
}

// Opcodes of linux/bpf_common.h: class | size, mode or operation | operand.
pub const LOAD: u16 = 0x20;
pub const AND: u16 = 0x54;
pub const JUMP: u16 = 0x05;
pub const JUMP_EQ: u16 = 0x15;
pub const JUMP_GE: u16 = 0x35;
pub const RETURN: u16 = 0x06;

pub fn op(code: u16, k: u32) -> Instruction {
    Instruction {
        code,
        jt: 0,
        jf: 0,
        k,
    }
}

pub fn branch(code: u16, k: u32, jt: u8, jf: u8) -> Instruction {
    Instruction { code, jt, jf, k }
}

/// Numbers from `first` up to the next range's `first`, all with the same position-independent code.
pub struct Range {
    pub first: u32,
    pub code: Vec<Instruction>,
}

/// Code whose decisions may still lack a place: those jump to a `RETURN` that many of them share.
///
/// The kernel translates the whole program for every sandbox, so each instruction that is not there counts.
#[derive(Default)]
struct Block {
    code: Vec<Instruction>,
    /// Where a branch leads to which action, if it is taken or if it is not.
    open: Vec<(usize, bool, u32)>,
}

impl Block {
    /// A branch reaches 255 instructions; within this length none gets near that.
    const SHORT: usize = 120;

    fn is_short(&self) -> bool {
        self.code.len() <= Self::SHORT
    }

    /// Adds what stands right behind. No way leads from one into the other but by a branch.
    fn append(&mut self, other: Self) {
        let start = self.code.len();
        self.code.extend(other.code);
        let moved = other.open.into_iter();
        self.open
            .extend(moved.map(|(at, taken, action)| (at + start, taken, action)));
    }

    /// Leads all open branches to a return that is there already, or to one at the end.
    fn close(&mut self) {
        for (at, taken, action) in std::mem::take(&mut self.open) {
            let returned = op(RETURN, action);
            let within_reach = &self.code[at + 1..self.code.len().min(at + 257)];
            let known = within_reach.iter().position(|op| *op == returned);
            let distance = known.unwrap_or_else(|| {
                self.code.push(returned);
                self.code.len() - at - 2
            });
            // Short blocks, so it fits; tests walk the way of every number.
            let distance = u8::try_from(distance).unwrap_or(u8::MAX);
            let branch = &mut self.code[at];
            *(if taken {
                &mut branch.jt
            } else {
                &mut branch.jf
            }) = distance;
        }
    }
}

pub fn search(ranges: &[Range]) -> Vec<Instruction> {
    let mut block = block(ranges);
    block.close();
    block.code
}

/// Binary search: the lower half follows its branch, the upper half comes after it.
fn block(ranges: &[Range]) -> Block {
    let (lower, upper) = match ranges {
        [] => return Block::default(),
        [only] => {
            return Block {
                code: only.code.clone(),
                open: Vec::new(),
            };
        }
        _ => ranges.split_at(ranges.len() / 2),
    };
    let pivot = upper[0].first;
    let action = |half: &[Range]| match half {
        [only] => match only.code.as_slice() {
            [only] if only.code == RETURN => Some(only.k),
            _ => None,
        },
        _ => None,
    };
    let (below, above) = (action(lower), action(upper));
    let mut whole = Block {
        code: vec![branch(JUMP_GE, pivot, 0, 0)],
        open: Vec::new(),
    };
    match (below, above) {
        (Some(below), Some(above)) => whole.open = vec![(0, true, above), (0, false, below)],
        (Some(action), None) | (None, Some(action)) => {
            let rest = block(if below.is_some() { upper } else { lower });
            let taken = above.is_some();
            if rest.is_short() {
                whole.open.push((0, taken, action));
            } else {
                whole.code[0] = branch(JUMP_GE, pivot, u8::from(!taken), u8::from(taken));
                whole.code.push(op(RETURN, action));
            }
            whole.append(rest);
        }
        (None, None) => {
            let (mut lower, upper) = (block(lower), block(upper));
            if !lower.is_short() || !upper.is_short() {
                lower.close();
            }
            whole.code = match u8::try_from(lower.code.len()) {
                Ok(distance) => vec![branch(JUMP_GE, pivot, distance, 0)],
                // An unconditional branch reaches everything.
                Err(_) => vec![
                    branch(JUMP_GE, pivot, 0, 1),
                    op(JUMP, u32::try_from(lower.code.len()).unwrap_or(u32::MAX)),
                ],
            };
            whole.append(lower);
            whole.append(upper);
        }
    }
    if !whole.is_short() {
        whole.close();
    }
    whole
}
