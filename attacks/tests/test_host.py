"""What the suite says of the host, where it could be wrong in a way that no case shows."""

from __future__ import annotations

import fcntl
import os
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from suite import host  # noqa: E402

TOKEN = "0123456789abcdef"


class Host(unittest.TestCase):
    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.place = Path(directory.name)

    def test_a_file_with_other_content_is_another(self) -> None:
        """Also where size and time of writing are what they were."""
        path = self.place / "guarded"
        path.write_text("as it was")
        before, times = host.fingerprint(path), path.stat()
        self.assertEqual(host.fingerprint(path), before)
        # The kernel's clock for files goes in steps of some milliseconds.
        time.sleep(0.05)
        path.write_text("otherwise")
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        self.assertNotEqual(host.fingerprint(path), before)

    def test_a_lease_is_a_neighbours_while_somebody_else_holds_it(self) -> None:
        lease = self.place / "belljar" / "keeper-0001"
        lease.parent.mkdir()
        lease.write_text(f"{TOKEN}\n/sys/fs/cgroup\n")
        with mock.patch.object(host, "SCRATCH", (str(self.place),)):
            self.assertEqual(host.neighbours(os.getpid()), set())
            read, write = os.pipe()
            if (child := os.fork()) == 0:
                held = lease.open()
                fcntl.flock(held, fcntl.LOCK_EX)
                os.write(write, b"!")
                time.sleep(60)
                os._exit(0)
            try:
                os.read(read, 1)
                self.assertEqual(host.neighbours(os.getpid()), set())
                self.assertEqual(host.neighbours(child), {str(lease), f"/belljar-{TOKEN}"})
            finally:
                os.kill(child, 9)
                os.waitpid(child, 0)
            self.assertEqual(host.neighbours(child), set())


if __name__ == "__main__":
    unittest.main()
