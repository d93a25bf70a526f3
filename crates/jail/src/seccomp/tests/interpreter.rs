//! The part of classic BPF that seccomp programs use.

use crate::seccomp::Instruction;

#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub enum Action {
    Allow,
    Eperm,
    Enosys,
    Kill,
}

pub struct Outcome {
    pub action: Action,
    pub steps: usize,
    /// An argument was looked at, so the kernel cannot cache the answer in its allow bitmap.
    pub saw_arguments: bool,
}

/// The part of classic BPF that seccomp programs use; anything else, and any step outside the program, panics.
pub fn interpret(program: &[Instruction], arch: u32, nr: u32, args: [u64; 6]) -> Outcome {
    let mut data = [0u8; 64];
    data[0..4].copy_from_slice(&nr.to_le_bytes());
    data[4..8].copy_from_slice(&arch.to_le_bytes());
    for (index, arg) in args.iter().enumerate() {
        data[16 + 8 * index..24 + 8 * index].copy_from_slice(&arg.to_le_bytes());
    }
    let (mut at, mut accumulator, mut steps, mut saw_arguments) = (0usize, 0u32, 0, false);
    loop {
        let Instruction { code, jt, jf, k } = program[at];
        at += 1;
        steps += 1;
        let offset = k as usize;
        match code {
            0x20 => {
                assert_eq!(offset % 4, 0);
                accumulator = data[offset..offset + 4]
                    .iter()
                    .rev()
                    .fold(0, |word, byte| word << 8 | u32::from(*byte));
                saw_arguments |= offset >= 16;
            }
            0x54 => accumulator &= k,
            0x05 => at += offset,
            0x15 => at += usize::from(if accumulator == k { jt } else { jf }),
            0x35 => at += usize::from(if accumulator >= k { jt } else { jf }),
            0x06 => {
                let action = match k {
                    0x7fff_0000 => Action::Allow,
                    0x0005_0001 => Action::Eperm,
                    0x0005_0026 => Action::Enosys,
                    0x8000_0000 => Action::Kill,
                    other => panic!("unknown action {other:#x}"),
                };
                return Outcome {
                    action,
                    steps,
                    saw_arguments,
                };
            }
            other => panic!("unknown opcode {other:#x} at {}", at - 1),
        }
    }
}
