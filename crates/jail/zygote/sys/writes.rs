//! Sees each write of a process to its memory: where, to the byte. For a copy that is thrown away.
//!
//! The memory can only be read. A write then is a fault, which says where; it is allowed for one instruction, behind which the processor stops
//! again. The kernel writes to memory too, in system calls, and faults there are errors that the caller would see: so these are made on its behalf,
//! with all memory open. What they write is not seen.

#[cfg(target_arch = "x86_64")]
pub use seen::{begin, end};

/// Without a way to stop behind one instruction nothing is seen.
#[cfg(not(target_arch = "x86_64"))]
pub fn begin(_: impl Iterator<Item = super::memory::Piece>) -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
pub fn end() -> &'static mut [usize] {
    &mut []
}

#[cfg(target_arch = "x86_64")]
mod seen {
    use core::arch::{asm, naked_asm};

    use super::super::memory::{Blank, Piece, reserve};
    use super::super::statics;
    use crate::call::nr;

    const PAGE: usize = 4096;
    const READ: usize = 1;
    const READ_WRITE: usize = 3;
    /// Ranges of memory that are watched.
    const RANGES: usize = 256;
    /// Writes that are noted. A first run makes a tenth of them.
    const MOST: usize = 1 << 18;
    /// Pages that one instruction can write to, with room to spare.
    const OPEN: usize = 8;
    /// In front of the thread's own memory, and behind where it begins.
    const THREAD: (usize, usize) = (8 << 10, 8 << 10);

    const SIGTRAP: usize = 5;
    const SIGSEGV: usize = 11;
    const SIGSYS: usize = 31;
    const OURS: u64 = 1 << (SIGTRAP - 1) | 1 << (SIGSEGV - 1) | 1 << (SIGSYS - 1);

    #[derive(Clone, Copy)]
    struct Range {
        start: usize,
        end: usize,
    }

    /// Not among our statics: these are watched too, or lie beside what is.
    struct Seen {
        ranges: [Range; RANGES],
        count: usize,
        /// Pages that may be written to until the instruction is over.
        open: [usize; OPEN],
        opened: usize,
        words: [usize; MOST],
        found: usize,
    }

    impl Blank for Seen {}

    static mut SEEN: Option<&'static mut Seen> = None;

    fn seen() -> &'static mut Seen {
        match statics(&raw mut SEEN) {
            Some(seen) => seen,
            None => leave(),
        }
    }

    /// Begins to watch these pieces. Whether it can: else nothing has changed.
    pub fn begin(pieces: impl Iterator<Item = Piece>) -> bool {
        let Some([seen]) = reserve::<Seen>(1) else {
            return false;
        };
        for piece in pieces.filter(|piece| piece.rights == READ_WRITE) {
            seen.watch(piece);
        }
        *statics(&raw mut SEEN) = Some(seen);
        if !handle(SIGSEGV, on_fault) || !handle(SIGTRAP, on_step) || !handle(SIGSYS, on_call) {
            return false;
        }
        if !trap_calls() {
            return false;
        }
        self::seen().protect(READ);
        true
    }

    /// Stops watching. Each word that was written to, as often as it was.
    pub fn end() -> &'static mut [usize] {
        let seen = seen();
        seen.protect(READ_WRITE);
        seen.count = 0;
        &mut seen.words[..seen.found]
    }

    impl Seen {
        /// But for what the handlers themselves need, and the thread's own memory, to which the kernel writes at any time.
        fn watch(&mut self, piece: Piece) {
            let (thread, stack): (usize, usize);
            // SAFETY: reads a register, and where the thread's own memory is, which every thread has there.
            unsafe {
                asm!("mov {}, fs:0", "mov {}, rsp", out(reg) thread, out(reg) stack, options(nostack, readonly));
            }
            let end = piece.start + piece.length;
            let pieces = piece.start..end;
            if pieces.contains(&stack) || pieces.contains(&(&raw const SEEN as usize)) {
                return;
            }
            let left_out = (thread - THREAD.0) & !(PAGE - 1)..(thread + THREAD.1) & !(PAGE - 1);
            for (start, end) in [
                (piece.start, end.min(left_out.start)),
                (piece.start.max(left_out.end), end),
            ] {
                if start < end && self.count < RANGES {
                    self.ranges[self.count] = Range { start, end };
                    self.count += 1;
                }
            }
        }

        fn protect(&self, rights: usize) {
            for range in &self.ranges[..self.count] {
                // Some of it may have been given back.
                let _ = allow(range.start, range.end - range.start, rights);
            }
        }

        fn has(&self, place: usize) -> bool {
            let ranges = &self.ranges[..self.count];
            ranges
                .iter()
                .any(|range| (range.start..range.end).contains(&place))
        }
    }

    fn allow(start: usize, length: usize, rights: usize) -> bool {
        gate(nr::MPROTECT, start, length, rights, 0, 0, 0) == 0
    }

    /// The only place from which system calls are let through.
    #[unsafe(naked)]
    extern "C" fn gate(
        n: usize,
        a: usize,
        b: usize,
        c: usize,
        d: usize,
        e: usize,
        f: usize,
    ) -> isize {
        naked_asm!(
            "mov rax, rdi",
            "mov rdi, rsi",
            "mov rsi, rdx",
            "mov rdx, rcx",
            "mov r10, r8",
            "mov r8, r9",
            "mov r9, [rsp + 8]",
            "syscall",
            "ret",
        )
    }
    /// More than the bytes of its instructions.
    const GATE: u32 = 48;

    /// Where a handler returns to.
    #[unsafe(naked)]
    extern "C" fn resume() {
        naked_asm!("mov eax, 15", "syscall", "ud2")
    }
    const RESUME: u32 = 16;

    fn leave() -> ! {
        loop {
            gate(nr::EXIT_GROUP, 70, 0, 0, 0, 0, 0);
        }
    }

    /// `ucontext`, as far as it matters.
    #[repr(C)]
    struct Context {
        before: [u64; 5],
        registers: [u64; 23],
        after: [u64; 9],
        mask: u64,
    }

    const R8: usize = 0;
    const R9: usize = 1;
    const R10: usize = 2;
    const RDI: usize = 8;
    const RSI: usize = 9;
    const RDX: usize = 12;
    const RAX: usize = 13;
    const FLAGS: usize = 17;
    /// The processor stops behind each instruction.
    const STEP: u64 = 0x100;

    /// `siginfo`, as far as it matters.
    #[repr(C)]
    struct Info {
        before: [u64; 2],
        place: usize,
    }

    type Handler = extern "C" fn(i32, &Info, &mut Context);

    fn handle(signal: usize, handler: Handler) -> bool {
        #[repr(C)]
        struct Action {
            handler: Handler,
            flags: u64,
            restorer: extern "C" fn(),
            mask: u64,
        }
        const RT_SIGACTION: usize = 13;
        const SIGINFO_RESTORER: u64 = 0x0400_0004;
        let action = Action {
            handler,
            flags: SIGINFO_RESTORER,
            restorer: resume,
            mask: 0,
        };
        let at = &raw const action as usize;
        gate(RT_SIGACTION, signal, at, 0, size_of::<u64>(), 0, 0) == 0
    }

    /// A write to what can only be read.
    extern "C" fn on_fault(_: i32, info: &Info, context: &mut Context) {
        let seen = seen();
        let page = info.place & !(PAGE - 1);
        // What is no write of this kind is a real fault.
        if !seen.has(info.place) || seen.opened == OPEN || !allow(page, PAGE, READ_WRITE) {
            leave();
        }
        if seen.found < MOST {
            seen.words[seen.found] = info.place;
            seen.found += 1;
        }
        seen.open[seen.opened] = page;
        seen.opened += 1;
        context.registers[FLAGS] |= STEP;
    }

    /// Behind it.
    extern "C" fn on_step(_: i32, _: &Info, context: &mut Context) {
        let seen = seen();
        for &page in &seen.open[..seen.opened] {
            let _ = allow(page, PAGE, READ);
        }
        seen.opened = 0;
        context.registers[FLAGS] &= !STEP;
    }

    extern "C" fn on_call(_: i32, _: &Info, context: &mut Context) {
        let seen = seen();
        let r = context.registers;
        let [n, a, b, c, d, e, f] =
            [RAX, RDI, RSI, RDX, R10, R8, R9].map(|register| r[register] as usize);
        seen.protect(READ_WRITE);
        context.registers[RAX] = if n == nr::SIGPROCMASK {
            mask_signals(&mut context.mask, a, b, c)
        } else {
            gate(n, a, b, c, d, e, f) as u64
        };
        seen.protect(READ);
    }

    /// What the handler returns to has this mask. Without our signals in it, whatever is asked for.
    fn mask_signals(mask: &mut u64, how: usize, set: usize, old: usize) -> u64 {
        let was = *mask;
        // SAFETY: whoever calls passes places that are good for this, or none.
        unsafe {
            if let Some(&set) = (set as *const u64).as_ref() {
                let new = match how {
                    0 => was | set,
                    1 => was & !set,
                    _ => set,
                };
                *mask = new & !OURS;
            }
            if let Some(old) = (old as *mut u64).as_mut() {
                *old = was;
            }
        }
        0
    }

    /// Has system calls come to `on_call`, but for those from the gate.
    fn trap_calls() -> bool {
        #[repr(C)]
        struct Instruction {
            code: u16,
            yes: u8,
            no: u8,
            k: u32,
        }
        #[repr(C)]
        struct Program {
            length: u16,
            filter: *const Instruction,
        }
        const LOAD: u16 = 0x20;
        const EQUAL: u16 = 0x15;
        const AT_LEAST: u16 = 0x35;
        const RETURN: u16 = 0x06;
        const TRAP: u32 = 0x0003_0000;
        const ALLOW: u32 = 0x7fff_0000;
        /// Where in `struct seccomp_data` the instruction is, its lower half first.
        const PLACE: u32 = 8;
        let is = |code, k, yes, no| Instruction { code, yes, no, k };
        let (gate, resume) = (gate as *const () as usize, resume as *const () as usize);
        let high = (gate >> 32) as u32;
        if high != (resume >> 32) as u32 {
            return false;
        }
        let (gate, resume) = (gate as u32, resume as u32);
        let filter = [
            is(LOAD, PLACE + 4, 0, 0),
            is(EQUAL, high, 0, 5),
            is(LOAD, PLACE, 0, 0),
            is(AT_LEAST, gate, 0, 1),
            is(AT_LEAST, gate.wrapping_add(GATE), 0, 3),
            is(AT_LEAST, resume, 0, 1),
            is(AT_LEAST, resume.wrapping_add(RESUME), 0, 1),
            is(RETURN, TRAP, 0, 0),
            is(RETURN, ALLOW, 0, 0),
        ];
        const SET_MODE_FILTER: usize = 1;
        let program = Program {
            length: filter.len() as u16,
            filter: filter.as_ptr(),
        };
        let at = &raw const program as usize;
        self::gate(nr::SECCOMP, SET_MODE_FILTER, 0, at, 0, 0, 0) == 0
    }
}
