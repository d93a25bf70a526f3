#!/usr/bin/python3
"""Make the tar file of a small root from packages that are installed on this Debian machine, with what they depend on.

Nothing is downloaded and nothing of it is run. Documentation and translations are left out. Takes a second or two.
"""

import argparse
import io
import os
import re
import subprocess
import sys
import tarfile

LEFT_OUT = re.compile(r"/usr/share/(doc|man|locale|info|lintian|bug|i18n|zoneinfo|perl5|bash-completion|common-licenses)/.")
DIRECTORIES = ["dev", "etc", "home", "proc", "root", "run", "sys", "tmp", "usr", "var"]
# Without what they depend on, which is half a distribution.
ALONE = ["python3-pip", "python3-setuptools", "python3-wheel", "python3-pkg-resources", "python3-distutils", "python3-lib2to3"]
LINKS = ["bin", "lib", "lib64", "sbin"]


def depended_on(packages):
    """The packages and all that they need, as far as it is installed."""
    text = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Package}\t${Pre-Depends}, ${Depends}\t${Provides}\n"],
        check=True, capture_output=True, text=True,
    ).stdout
    needs, providers = {}, {}
    for line in text.splitlines():
        name, depends, provides = line.split("\t")
        needs[name] = [alternative.strip() for alternative in depends.split(",") if alternative.strip()]
        for provided in provides.split(","):
            providers.setdefault(provided.split("(")[0].strip(), name)
    found, pending = set(), list(packages)
    while pending:
        name = pending.pop()
        if name in found:
            continue
        if name not in needs:
            sys.exit(f"{name} is not installed; install it with: apt-get install --no-install-recommends {name}")
        found.add(name)
        for alternatives in needs[name]:
            names = [re.split(r"[ (:]", one.strip())[0] for one in alternatives.split("|")]
            known = [one if one in needs else providers.get(one) for one in names]
            pending.extend([one for one in known if one in needs][:1])
    return sorted(found)


def files_of(packages):
    text = subprocess.run(["dpkg-query", "-L", *packages], check=True, capture_output=True, text=True).stdout
    paths = set()
    for path in text.splitlines():
        # On a merged system packages still say /lib for /usr/lib.
        path = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
        if path.startswith("/") and path != "/" and not LEFT_OUT.match(path + "/.") and os.path.lexists(path):
            paths.add(path)
    for path in list(paths):
        while (path := os.path.dirname(path)) != "/":
            paths.add(path)
    return sorted(paths)


def root(out, packages):
    for name in DIRECTORIES:
        entry = tarfile.TarInfo(name)
        entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
        out.addfile(entry)
    for name in LINKS:
        if os.path.islink("/" + name):
            out.add("/" + name, name, recursive=False)
    done = set(DIRECTORIES + LINKS)
    for path in files_of(depended_on(packages) + ALONE):
        if path[1:] not in done:
            out.add(path, path[1:], recursive=False)
    # What the packages' scripts would have made.
    made = {
        "etc/passwd": "root:x:0:0:root:/root:/bin/bash\napp:x:4711:4711::/srv/app:/bin/sh\n",
        "etc/group": "root:x:0:\napp:x:4711:\n",
        "etc/os-release": "PRETTY_NAME=\"a root for tests\"\n",
        "usr/lib/python3/dist-packages/only_in_the_image.py": "WHERE = 'the image'\n",
    }
    for name, text in made.items():
        entry = tarfile.TarInfo(name)
        entry.size, entry.mode, entry.mtime = len(text), 0o644, 1_700_000_000
        out.addfile(entry, io.BytesIO(text.encode()))
    for name, mode in {"etc/secret-of-root": 0o600, "usr/bin/set-user-id": 0o4755}.items():
        entry = tarfile.TarInfo(name)
        entry.size, entry.mode = 7, mode
        out.addfile(entry, io.BytesIO(b"secret\n"))
    for name, target in {"usr/bin/sh": "dash", "usr/bin/awk": "mawk"}.items():
        if name not in out.getnames() and os.path.lexists("/usr/bin/" + target):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            out.addfile(entry)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out")
    parser.add_argument("packages", nargs="*", default=["python3-minimal", "libpython3-stdlib", "bash", "coreutils", "dash", "mawk"])
    args = parser.parse_args()
    aside = f"{args.out}.{os.getpid()}"
    with tarfile.open(aside, "w", format=tarfile.GNU_FORMAT) as out:
        root(out, args.packages)
    os.rename(aside, args.out)


main()
