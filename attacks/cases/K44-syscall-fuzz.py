# id: K44-syscall-fuzz
# does: makes random system calls with random arguments through both gates until its time is up
# expect: contained
# timeout: 4
# control: no, without a jar random calls as root may do anything to the machine
import random

from attack import *

seed = random.randrange(1 << 32)
say("seed", seed)
tried()
random.seed(seed)
interesting = [0, 1, 2, 3, 4096, -1, -100, 1 << 31, 1 << 63, buf(b"/proc/self/exe\0"), buf(b"", 4096), buf(b"\xff" * 256), os.getppid()]
limit = time.monotonic() + 2.5
while time.monotonic() < limit:
    pid = os.fork()
    if pid == 0:
        LIBC.alarm(1)
        while time.monotonic() < limit:
            number, args = random.randrange(480), [random.choice(interesting) for _ in range(5)]
            try:
                sc(number, *args) if random.random() < 0.8 else int80(number, *[arg & 0xFFFFFFFF for arg in args])
            except OSError:
                pass
        os._exit(0)
    random.random()
    os.waitpid(pid, 0)
