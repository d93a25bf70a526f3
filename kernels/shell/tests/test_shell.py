"""The bash kernel: state, statuses, exits, interrupts, and code that works against it."""

import os
import pathlib
import signal
import time
import unittest

from harness import Ended, children, kernel


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.k = cls.enterClassContext(kernel())

    def run_(self, code, **fields):
        return self.k.run(code, **fields)

    def text(self, code, **fields):
        return self.k.text(code, **fields)


class State(Case):
    def test_the_status_of_the_run_before(self):
        self.assertEqual(self.text("echo $?"), "0\n")
        for code, status in (("(exit 3)", 3), ("exit 4", 4), ("false", 1), ("true", 0)):
            self.run_(code)
            self.assertEqual(self.text("echo $?"), f"{status}\n", code)

    def test_variables_functions_aliases_directory(self):
        self.run_("word='two words'; list=(a 'b c'); declare -A map=([k]=v); export SHOWN=yes; declare -i number=5; hello() { echo \"hello $1\"; }; alias hi='hello you'")
        self.assertEqual(self.text("echo \"$word|${list[1]}|${map[k]}|$(printenv SHOWN)\"; number+=2; echo $number; hello there"), "two words|b c|v|yes\n7\nhello there\n")
        self.assertEqual(self.text("hi"), "hello you\n")
        self.run_("mkdir -p sub && cd sub")
        self.assertEqual(self.text("basename $PWD; cd .. && basename $OLDPWD"), "sub\nsub\n")

    def test_options_and_shopts(self):
        self.run_("set -o pipefail; shopt -s nullglob")
        self.assertEqual(self.run_("false | true").status, 1)
        self.assertEqual(self.text("echo no-such-*; set +o pipefail; shopt -u nullglob"), "\n")

    def test_declare_is_global(self):
        self.run_("declare d1=x; typeset d2=y; readonly d3=z")
        self.assertEqual(self.text("echo $d1$d2$d3"), "xyz\n")

    def test_an_err_trap_is_called_once_for_each_error(self):
        self.assertEqual(self.text("trap 'echo ERR $?' ERR; (exit 3); true"), "ERR 3\n")
        for _ in range(2):
            self.assertEqual(self.run_("(exit 3)").out, "ERR 3\n")
            self.assertEqual(self.text("f() { false; }; f; echo on; trap -p ERR"), "ERR 1\non\ntrap -- 'echo ERR $?' ERR\n")
        self.assertEqual(self.run_("exit 4").out, "")
        self.assertEqual(self.run_("(exit 3)").out, "ERR 3\n")
        self.assertEqual(self.run_("trap - ERR; false").out, "")
        self.assertEqual(self.run_("false").out, "")

    def test_descriptors_stay(self):
        self.run_("exec 3>three.txt; exec {auto}>auto.txt; echo one >&3; echo auto >&$auto")
        self.assertEqual(self.text("echo two >&3; exec 3>&-; exec {auto}>&-; cat three.txt auto.txt"), "one\ntwo\nauto\n")

    def test_background_jobs(self):
        self.run_("until_told() { until [ -e told ]; do sleep 0.02; done; }; until_told && echo finished >job.txt & job=$!")
        self.assertEqual(self.text("jobs | wc -l; touch told; wait $job; echo $?; cat job.txt").split(), ["1", "0", "finished"])

    def test_here_documents_and_long_code(self):
        self.assertEqual(self.text("cat <<'END'\n$not expanded `x`\nEND\ncat <<<\"here\""), "$not expanded `x`\nhere\n")
        self.assertEqual(self.text("\n".join(f"v{i}={i}" for i in range(3000)) + "\necho $((v0 + v2999))"), "2999\n")

    def test_bytes_are_not_touched(self):
        self.assertEqual(self.text("printf %s 'ä€\U0001f600\\n' \"tab\there\""), "ä€\U0001f600\\ntab\there")

    def test_arguments_and_variables(self):
        self.assertEqual(self.text("echo \"$# $1 $2\"", args=["a b", "it's"]), "2 a b it's\n")
        self.assertEqual(self.text("echo \"$given\"", variables={"given": "it's \"quoted\"\n$(no)"}), "it's \"quoted\"\n$(no)\n")
        self.assertEqual(self.text("set -- x y z; echo $#"), "3\n")
        self.assertEqual(self.text("echo $#; shift; echo $1"), "3\ny\n")
        self.assertEqual(self.run_("echo ok", variables={"not a name": "x", "a[$(touch evil)]": "y"}).out, "ok\n")
        self.assertEqual(self.text("ls evil 2>/dev/null || true"), "")

    def test_environment(self):
        with kernel(environment={"FROM_START": "x"}) as k:
            self.assertEqual(k.text("printenv FROM_START"), "x\n")
            k.send("setup", 2, "FROM_SETUP", "a=b c", "PATH", "/usr/bin:/bin")
            self.assertEqual(k.text("printenv FROM_SETUP; printenv FROM_START || echo none"), "a=b c\nnone\n")

    def test_variables_that_come_later(self):
        with kernel(environment={"FROM_START": "x"}) as k:
            k.text("export MINE=m; declare -r FIXED=f")
            k.send("env", 2, "LATER", "a=b c", "FIXED", "no")
            self.assertEqual(k.text("printenv LATER FROM_START MINE; echo $FIXED"), "a=b c\nx\nm\nf\n")

    def test_input(self):
        self.assertEqual(self.text("read -r a b; echo \"$b-$a\"; cat", stdin="one two\nrest\n"), "two-one\nrest\n")
        self.assertEqual(self.text("cat", stdin="no newline"), "no newline")
        self.assertEqual(self.text("cat | wc -c", stdin="x" * 300000 + "\n"), "300001\n")
        self.assertEqual(self.text("cat; read x || echo end"), "end\n")
        self.run_("true", stdin="y" * 300000)
        self.assertEqual(self.text("cat"), "")


class Statuses(Case):
    def test_status_of_the_last_command(self):
        for code, status in (("true", 0), ("false", 1), ("(exit 7)", 7), ("no-such-command-x", 127), ("(kill -TERM $BASHPID; sleep 1)", 143), ("", 0), ("# nothing", 0)):
            self.assertEqual(self.run_(code).status, status, code)

    def test_messages_have_the_line_of_the_code(self):
        self.assertEqual(self.run_("\n\nnowhere-to-be-found").err, "bash: line 3: nowhere-to-be-found: command not found\n")
        self.assertEqual(self.run_("\nnowhere-to-be-found", name="my.sh").err, "my.sh: line 2: nowhere-to-be-found: command not found\n")

    def test_syntax_errors(self):
        for code, line, word in (("echo before\necho )\necho after", "2", "unexpected token `)'"), ("echo 'open", "1", "matching `''"),
                                 ("if true; then\necho x", "3", "end of file"), ("for x in 1 2\necho", "2", "unexpected token `echo'"), ("}", "1", "`}'")):
            done = self.run_(code)
            self.assertEqual((done.status, done.type, done.line), (2, "SyntaxError", line), code)
            self.assertIn(word, done.message)
        self.assertIn("bash: eval: line 1: `}'\n", done.err)
        self.assertEqual(self.text("echo fine"), "fine\n")

    def test_status_2_is_not_always_a_syntax_error(self):
        done = self.run_("ls /no/such/file 2>/dev/null")
        self.assertEqual((done.status, done.type), (2, ""))

    def test_extended_patterns(self):
        self.run_("shopt -s extglob")
        self.assertEqual(self.text("case abc in +([a-z])) echo matched;; esac"), "matched\n")
        done = self.run_("[[ x == +(x) ]] && (exit 2)")
        self.assertEqual((done.status, done.type), (2, ""))

    def test_output_order(self):
        self.assertEqual(self.text("echo a; /bin/echo b; printf 'c\\n'; (echo d); echo e | cat"), "a\nb\nc\nd\ne\n")


class Exits(Case):
    def state(self, then=""):
        process = self.text("echo $$")
        self.run_("cd /; set -- p q; num=1; arr=(x 'y z'); declare -A map=([a b]=c); exported=v; export exported; readonly_one=set;"
                  "func() { echo \"func $1\"; }; alias al='echo aliased'; set -o pipefail; shopt -s dotglob; umask 027; exec 5>/dev/null; multi=$'l1\\nl2'; trap 'echo got usr1' USR1")
        done = self.run_(then)
        after = self.text("echo \"$PWD $* $num ${arr[1]} ${map[a b]} $(printenv exported) $multi\"; func x; al; shopt -q dotglob && echo dotglob; [[ -o pipefail ]] && echo pipefail;"
                          " umask; echo >&5 && echo five; kill -USR1 $$; echo $$")
        self.assertEqual(after, "/ p q 1 y z c v l1\nl2\nfunc x\naliased\ndotglob\npipefail\n0027\nfive\ngot usr1\n" + process, then)
        return done

    def test_exit_keeps_everything(self):
        self.assertEqual(self.state("exit 3").status, 3)
        self.assertEqual(self.state("f() { g; }; g() { exit 4; }; f; echo no").status, 4)
        self.assertEqual(self.state("for i in 1 2; do while :; do exit 5; done; done").status, 5)
        self.assertEqual(self.state("exit 300").status, 300 - 256)
        self.assertEqual(self.state("builtin exit 6").status, 6)

    def test_locals_of_a_function_that_exits_are_not_kept(self):
        self.run_("outer=global; f() { local outer=local1 only=x; g; }; g() { local outer=local2; outer_seen=$outer; exit 1; }; f")
        self.assertEqual(self.text("echo $outer $outer_seen"), "global local2\n")

    def test_set_e(self):
        done = self.state("set -e; false; echo no")
        self.assertEqual((done.status, done.out), (1, ""))
        done = self.run_("echo still; false; echo no")
        self.assertEqual((done.status, done.out), (1, "still\n"))
        self.assertEqual(self.run_("f() { false; echo no; }; f; echo no").status, 1)
        self.assertEqual(self.text("if false; then :; fi; false || true; set +e; false; echo yes"), "yes\n")

    def test_set_u_and_required_variables(self):
        done = self.state("set -u; echo $not_set; echo no")
        self.assertNotEqual(done.status, 0)
        self.assertIn("not_set: unbound variable", done.err)
        self.assertIn("boom", self.state("set +u; echo ${required:?boom}; echo no").err)

    def test_strict_scripts(self):
        done = self.run_("#!/bin/bash\nset -euo pipefail\nIFS=$'\\n\\t'\nrm_tmp() { rm -f tmp-file; echo cleaned; }\ntrap rm_tmp EXIT\ntouch tmp-file\ngrep -q nothing /dev/null | cat\necho no")
        self.assertEqual((done.status, done.out), (1, "cleaned\n"))
        self.assertEqual(self.text("set +eu; set +o pipefail; IFS=$' \\t\\n'; ls tmp-file 2>/dev/null || echo gone"), "gone\n")

    def test_exit_traps(self):
        self.run_("trap 'echo status $?; exit 9' EXIT")
        self.assertIn("trap -- 'echo status $?; exit 9' EXIT", self.text("trap -p"))
        done = self.run_("exit 4")
        self.assertEqual((done.status, done.out), (4, "status 4\n"))
        self.assertEqual(self.run_("exit 5").out, "")
        self.assertEqual(self.text("trap 'echo x' EXIT; trap - EXIT; (trap 'echo sub' EXIT; exit 0); echo end"), "sub\nend\n")

    def test_other_traps(self):
        self.run_("for s in TERM SIGHUP 10; do trap \"echo $s\" $s; done")
        self.assertEqual(self.text("kill -TERM $$; kill -HUP $$; kill -USR1 $$; trap - TERM HUP USR1; trap"), "TERM\nSIGHUP\n10\n")
        self.run_("trap 'echo err $?' ERR")
        self.assertEqual(self.text("(exit 3); true"), "err 3\n")
        self.assertEqual(self.run_("trap 'x' NOSUCH").status, 1)
        self.assertEqual(self.text("trap - ERR; false; true"), "")

    def test_traces_show_the_code_only(self):
        self.run_("set -x")
        self.assertEqual(self.run_("echo traced").err.lstrip("+"), " echo traced\n")
        self.assertEqual(self.run_("exit 1").err.lstrip("+"), " exit 1\n")
        self.assertEqual(self.run_("set +x").err.lstrip("+"), " set +x\n")
        self.assertEqual(self.run_("true").err, "")

    def test_break_continue_return(self):
        for code in ("break", "continue", "break 9", "return 3"):
            self.run_("bcr=kept")
            self.run_(code)
            self.assertEqual(self.text("echo $bcr"), "kept\n", code)

    def test_options_survive_a_first_line_that_does_not_parse(self):
        self.run_("set -e")
        self.assertEqual(self.run_(")").type, "SyntaxError")
        self.assertEqual(self.run_("false; echo no").out, "")
        self.run_("set +e")

    def test_last_run(self):
        with kernel() as k:
            done = k.run("trap 'echo bye' EXIT; echo hi; exit 3", last=True)
            self.assertEqual((done.status, k.wait()), (3, 3))
            self.assertEqual(k.stdout, "hi\nbye\n")
        with kernel() as k:
            self.assertEqual(k.run("false", last=True).status, 1)
            self.assertEqual(k.wait(), 1)

    def test_end_of_the_channel(self):
        with kernel() as k:
            k.channel.close()
            k.channel = None
            self.assertEqual(k.wait(), 0)


class Signals(Case):
    def test_traps_as_subshells_show_them(self):
        self.assertEqual(self.text("trap 'echo hup' HUP; saved=$(trap -p); echo \"$saved\"; (trap -p INT HUP; trap - TERM; trap 'x' USR1; trap); trap - HUP; echo \"$(trap)\"; (trap)"),
                         "trap -- 'echo hup' SIGHUP\ntrap -- 'echo hup' SIGHUP\ntrap -- 'x' SIGUSR1\n\n")

    def test_signals_that_end_the_shell(self):
        self.run_("signal_mark=kept")
        for name, number in (("HUP", 1), ("QUIT", 3), ("ABRT", 6), ("USR1", 10), ("SEGV", 11), ("PIPE", 13), ("ALRM", 14), ("TERM", 15), ("STKFLT", 16), ("XCPU", 24), ("SYS", 31)):
            for _ in range(2):
                done = self.run_(f"echo begun; kill -{name} $$; echo after")
                self.assertEqual((done.status, done.out, done.err, done.interrupted), (128 + number, "begun\n", "", False), name)
        done = self.run_("f() { kill -HUP $$; echo after; }; trap 'echo got' HUP; f; trap - HUP; f; echo after")
        self.assertEqual((done.status, done.out), (129, "got\nafter\n"))
        self.assertEqual(self.text("echo $signal_mark"), "kept\n")

    def test_signals_from_what_is_written_to(self):
        done = self.run_("exec 3> >(exit 0); sleep 0.2; echo x >&3; echo after")
        self.assertEqual((done.status, done.out), (141, ""))
        done = self.run_("exec 3>&-; ulimit -S -f 0; echo a >file; echo after")
        self.assertEqual((done.status, done.out), (153, ""))
        self.assertEqual(self.text("ulimit -S -f unlimited; { yes; } | head -n 1; echo ${PIPESTATUS[0]}; set +o pipefail"), "y\n141\n")

    def test_signals_that_are_ignored(self):
        self.assertEqual(self.run_("trap '' HUP; kill -HUP $$; grep -c '^SigIgn:.*1$' /proc/self/status; exit 3").out, "1\n")
        self.assertEqual(self.text("kill -HUP $$; trap; grep -c '^SigIgn:.*1$' /proc/self/status"), "trap -- '' SIGHUP\n1\n")
        done = self.run_("trap - HUP; grep -c '^SigIgn:.*0$' /proc/self/status; kill -HUP $$; echo after")
        self.assertEqual((done.status, done.out), (129, "1\n"))

    def test_a_signal_between_runs_does_nothing(self):
        self.run_("between=kept; { until [ -e go ]; do sleep 0.01; done; kill -USR1 $$; kill -TERM $$; touch gone; } &")
        pathlib.Path(self.k.directory, "go").touch()
        while not pathlib.Path(self.k.directory, "gone").exists():
            time.sleep(0.01)
        self.assertEqual(self.text("echo $between"), "kept\n")


class Redirections(Case):
    def test_redirections_end_with_the_run(self):
        for code, status in (("f() { exit 2; }; f >f1 2>&1", 2), ("{ exit 3; } 2>f1 >&2", 3), ("{ kill -HUP $$; } >f1 2>&1", 129), ("set -e; while false || :; do false; done >f1; echo after", 1),
                             ("set +e; exec 3> >(exit 0); sleep 0.2; echo x >&3 2>f1", 141), ("exit 4 >f1", 4), ("f() { exit 2; }; { f 2>f1; } >f2", 2)):
            self.assertEqual(self.run_(code).status, status, code)
            done = self.run_("echo next; echo error >&2")
            self.assertEqual((done.status, done.out, done.err), (0, "next\n", "error\n"), code)
        self.k.start("echo begun; { sleep 100; } >f1 2>&1")
        self.k.begun()
        self.k.interrupt()
        self.assertTrue(self.k.finish().interrupted)
        done = self.run_("echo next; echo error >&2")
        self.assertEqual((done.out, done.err), ("next\n", "error\n"))

    def test_redirections_for_good_outlast_an_exit(self):
        self.run_("exec >log; echo one; exit 4")
        self.assertEqual(self.run_("echo two; exit 5").out, "")
        self.assertEqual(self.run_("echo three; f() { exit 6; }; f 2>f1").status, 6)
        self.assertEqual(self.text("cat log"), "one\ntwo\nthree\n")
        self.run_("exec >&- 2>&-; exit 1")
        self.assertEqual(self.text("echo back"), "back\n")
        # The last of the former is the one that the names are read through.
        self.assertEqual(self.text("exec 3>&-; all=(/proc/$$/fd/*); echo ${all[*]##*/}; ls /proc/self/fd | wc -l"), "0 1 121 123 124 2 3\n4\n")


class Interrupts(Case):
    def interrupted(self, code, **fields):
        self.run_("before=kept; keep() { echo function; }")
        self.k.start("echo begun\n" + code, **fields)
        self.k.begun()
        self.k.interrupt()
        done = self.k.finish()
        self.assertTrue(done.interrupted, done)
        self.assertEqual(done.status, 130)
        self.assertNotIn("after", done.out)
        self.assertEqual(self.text("echo $before; keep"), "kept\nfunction\n", code)

    def test_commands_and_loops(self):
        for code in ("sleep 100; echo after", "while :; do :; done; echo after", "f() { local before=no; while :; do sleep 0.01; done; }; f; echo after",
                     "sleep 100 | cat; echo after", "x=$(sleep 100); echo after", "(sleep 100); echo after", "sleep 100 & wait; echo after", "exec 4<>pipe; read -u 4 x; echo after"):
            with self.subTest(code):
                if "pipe;" in code:
                    self.run_("mkfifo pipe")
                self.interrupted(code)

    def test_between_runs_nothing_happens(self):
        for _ in range(5):
            self.k.interrupt(0.02)
        self.assertEqual(self.text("echo alive"), "alive\n")

    def test_traps_of_the_code_come_first(self):
        self.k.start("trap 'echo caught' INT; echo begun; sleep 100; echo went on; trap - INT")
        self.k.begun()
        self.k.interrupt()
        done = self.k.finish()
        self.assertEqual((done.interrupted, done.out), (False, "begun\ncaught\nwent on\n"))
        self.interrupted("sleep 100")

    def test_ignored_interrupts_are_ignored_in_that_run_and_later(self):
        self.k.start("trap '' INT; echo begun; sleep 0.6; echo done sleeping")
        self.k.begun()
        self.k.interrupt()
        self.assertEqual(self.k.finish().out, "begun\ndone sleeping\n")
        self.run_("trap - INT")
        self.interrupted("sleep 100")

    def test_many_in_a_row(self):
        self.run_("rounds=0")
        for _ in range(15):
            self.k.start("((++rounds)); echo begun; while :; do :; done")
            self.k.begun()
            self.k.interrupt(0.05)
            self.assertTrue(self.k.finish().interrupted)
        self.assertEqual(self.text("echo $rounds"), "15\n")

    def test_further_ones_while_the_shell_becomes_another_cost_nothing(self):
        self.run_("rounds=0")
        for gap in (*range(1, 9), 120, 130):
            self.k.start("((++rounds)); echo begun; while :; do :; done")
            self.k.begun()
            self.k.interrupt(0.01)
            self.k.interrupt(gap / 1000)
            self.assertTrue(self.k.finish().interrupted)
        self.assertEqual(self.text("echo $rounds"), "10\n")

    def test_a_shell_that_stands_still_keeps_nobody_busy(self):
        self.k.start("echo begun; kill -STOP $$; echo went on")
        self.k.begun()
        [shell] = children(self.k.process.pid)
        while "stopped" not in (state := self.k.state(shell)):
            self.assertNotIn("zombie", state)
            time.sleep(0.01)
        time.sleep(0.2)
        before = self.k.ticks()
        time.sleep(0.5)
        used = self.k.ticks() - before
        os.kill(shell, signal.SIGCONT)
        self.assertEqual(self.k.finish().out, "begun\nwent on\n")
        self.assertLess(used, 10)


class Hostile(unittest.TestCase):
    def check(self, code, **fields):
        with kernel() as k:
            k.run("mark=here")
            done = k.run(code, **fields)
            self.assertEqual(k.run("\\builtin printf '%s\\n' \"$mark\"").out, "here\n", code)
            self.assertEqual(k.run("\\builtin exit 3").status, 3, code)
            self.assertEqual(k.run("\\builtin printf '%s\\n' \"$mark\"").out, "here\n", code)
        return done

    def test_redefined_builtins(self):
        for name in ("read", "printf", "echo", "mapfile", "eval", "exec", "declare", "set", "trap_", "unset", "exit", "return", "test", "command", "local", "compgen", "shopt", "alias", "kill", "source", ":", "cd"):
            with self.subTest(name):
                self.check(f"{name}() {{ builtin echo replaced; builtin return 1; }}")
        self.check("shopt -s expand_aliases; alias builtin='echo no' eval=false exec=false mapfile=false printf=false local=false declare=false while=false trap=false set=false")

    def test_odd_settings(self):
        for code in ("IFS=abcdefgh_", "IFS=; set -f", "readonly IFS", "set -o posix", "shopt -s failglob nocasematch compat31", "unset PATH; PATH=", "set -k", "set -C", "set -a", "set -o noglob; set -b",
                     "shopt -u expand_aliases", "exec 3>&- 4>&- 5>&-", "BASH_ENV=/nonexistent; export BASH_ENV", "export SHELLOPTS; export BASHOPTS", "LC_ALL=C", "REPLY=x; readonly REPLY",
                     "readonly id name code status", "unset BASH BASH_VERSION", "BASH=/bin/false", "ulimit -n 130", "set -T; trap 'x=1' DEBUG", "set -E; trap 'x=2' ERR; false", "PS4='$(echo trace)'; set -x; BASH_XTRACEFD=2", "umask 777",
                     "POSIXLY_CORRECT=1", "HISTFILE=/x; set -o history", "enable -n echo", "rm -rf \"$PWD\"", "BASH_SUBSHELL=5; LINENO=9", "TMOUT=1", "trap '' TERM PIPE CHLD HUP"):
            with self.subTest(code):
                self.check(code)

    def test_closing_descriptors(self):
        self.check("exec 0<&- ; echo x")
        with kernel() as k:
            k.run("exec 1>&- 2>&-; echo x")
            self.assertEqual(k.run("true").status, 0)
        self.check("for n in 3 4 5 6 7 8 9 10 11 12 200 255; do eval \"exec $n>&-\"; done")

    def test_signals_at_itself(self):
        self.assertEqual(self.check("kill -TERM $$; sleep 1").status, 143)
        self.assertTrue(self.check("kill -INT $$; sleep 1").interrupted)

    def test_children_do_not_have_the_channel(self):
        with kernel() as k:
            for _ in range(2):
                self.assertEqual(k.run("ls -l /proc/self/fd | grep -c socket; (ls -l /proc/self/fd) | grep -c socket").out, "0\n0\n")
                k.run("exit 1")

    def test_environment_bombs(self):
        self.check("big=$(head -c 3000000 /dev/zero | tr '\\0' x); export big")
        self.check("declare -a many=({1..50000})")

    def test_code_that_closes_blocks(self):
        self.assertEqual(self.check("}; echo out; {").type, "SyntaxError")
        self.assertEqual(self.check("done").type, "SyntaxError")

    def test_clean_ends(self):
        for code in ("exec 121>&-", "FUNCNEST=1", "builtin() { :; }", "kill -KILL $$", "exec true", "enable -n mapfile", "for n in /proc/$$/fd/*; do n=${n##*/}; eval \"exec $n>&-\"; done"):
            with self.subTest(code), kernel() as k:
                k.start(code)
                with self.assertRaises(Ended):
                    k.finish(10)
                    k.run("true", seconds=10)
                k.wait()

    def test_ends_of_others_are_its_own(self):
        for code, status in (("exec true", 0), ("exec sh -c 'exit 3'", 3), ("exec sh -c 'exit 137'", 137), ("kill -KILL $$", -9),
                             ("exec sh -c 'kill -TERM $$'", -15), ("exec sh -c 'kill -INT $$'", -2)):
            for last in (False, True):
                with self.subTest(code, last=last), kernel() as k:
                    k.start(code, last=last)
                    with self.assertRaises(Ended):
                        k.finish(10)
                    self.assertEqual(k.wait(), status)
        with kernel() as k:
            k.run("exit 137", last=True)
            self.assertEqual(k.wait(), 137)

    def test_garbage_on_the_channel(self):
        for data in (b"what\0", b"run\0id\0n\0" + b"0\0none\0\0x\0", b"run\0id\0n\0" + b"0\0none\0\0-5\0"):
            with kernel() as k:
                k.channel.sendall(data)
                self.assertEqual(k.wait(), 76)

    def test_background_flood(self):
        with kernel() as k:
            k.run("(while :; do echo flood; done) & echo $! >flood.pid")
            self.assertEqual(k.run("kill $(cat flood.pid); wait 2>/dev/null; true").status, 0)


if __name__ == "__main__":
    unittest.main()
