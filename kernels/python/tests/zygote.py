"""A zygote small enough for tests: loads the modules it is given, prewarms, and forks one kernel for each line it reads at 4."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import belljar_kernel  # noqa: E402

del sys.path[0]
for name in sys.argv[1:]:
    __import__(name)
belljar_kernel.prewarm()
pid = os.fork()
if pid == 0:
    belljar_kernel.after_fork()
    belljar_kernel.serve(3)
os.close(3)
os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) & 0xFF)
