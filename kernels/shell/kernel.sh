#!/bin/bash
# The bash kernel: runs the code of each request in this very shell, so that variables, functions, aliases, options, traps,
# the directory and open descriptors stay. What README.md says of exits and interrupts is done here.
#
# The code shares this shell and may redefine what it likes. So every command goes through `builtin`, every name begins with
# __belljar_, every expansion is quoted, and nothing depends on IFS or on options.
# shellcheck disable=SC2034,SC2154 # the loop in main.sh reads some of the variables; some are made with `builtin readonly`

# High, so that it is in nobody's way; close-on-exec, so that no child has it (see __belljar_hide).
readonly __belljar_channel=121
readonly __belljar_state_pipe=122
readonly __belljar_out=123 __belljar_err=124 # the engine's pipes, hidden in the same way
readonly __belljar_own_out=125 __belljar_own_err=126 # what the code has made of 1 and 2, on its way through an exit

# What ends a process that does nothing about it, with the number (Linux's). bash would run the EXIT trap for most of them, without
# a word of the signal; the others would end it on the spot.
declare -rA __belljar_fatal=([HUP]=1 [QUIT]=3 [ILL]=4 [TRAP]=5 [ABRT]=6 [BUS]=7 [FPE]=8 [USR1]=10 [SEGV]=11 [USR2]=12 [PIPE]=13
    [ALRM]=14 [TERM]=15 [STKFLT]=16 [XCPU]=24 [XFSZ]=25 [VTALRM]=26 [PROF]=27 [IO]=29 [PWR]=30 [SYS]=31)

# --- The wire -------------------------------------------------------------------------------------------------------

# The next $1 fields of the channel, in __belljar_fields. At its end the process ends.
__belljar_read() {
    __belljar_fields=()
    (($1 == 0)) || builtin mapfile -d '' -t -n "$1" -u "$__belljar_channel" __belljar_fields
    ((${#__belljar_fields[@]} == $1)) || __belljar_quit 0
}

__belljar_answer() {
    builtin printf '%s\0' "$@" >&"$__belljar_channel" || __belljar_quit 74
}

__belljar_quit() {
    builtin trap - EXIT
    builtin exit "$1"
    # Only if the code has replaced `builtin` itself. An expansion that fails ends the shell, whatever is replaced.
    # shellcheck disable=SC2317
    builtin : "${__belljar_gone:?the shell kernel has lost its builtins}"
}

# name, value, … in __belljar_fields become variables. $1: options of `declare`.
__belljar_assign() {
    builtin local -i __belljar_at
    for ((__belljar_at = 0; __belljar_at + 1 < ${#__belljar_fields[@]}; __belljar_at += 2)); do
        [[ ${__belljar_fields[__belljar_at]} == [A-Za-z_]*([A-Za-z0-9_]) ]] || builtin continue
        builtin declare "$1" "${__belljar_fields[__belljar_at]}=${__belljar_fields[__belljar_at + 1]}" 2>/dev/null
    done
}

__belljar_clear_environment() {
    builtin local -a __belljar_names
    builtin mapfile -t __belljar_names < <(\builtin compgen -e)
    builtin unset -v "${__belljar_names[@]}" 2>/dev/null
}

# A count, and then that many fields times $1.
__belljar_read_counted() {
    __belljar_read 1
    [[ ${__belljar_fields[0]} == +([0-9]) ]] || __belljar_quit 76
    __belljar_read "$((10#${__belljar_fields[0]} * $1))"
}

# --- Runs -----------------------------------------------------------------------------------------------------------

# Waits for a run, and leaves what is to be evaluated in __belljar_code.
__belljar_next() {
    # `continue` at the top level of the code comes here past __belljar_after.
    [[ -z $__belljar_id ]] || { __belljar_after 0 "${__belljar_positional[@]}"; } >/dev/null 2>&1
    while ((1)); do
        __belljar_read 1
        case ${__belljar_fields[0]} in
            setup)
                __belljar_read_counted 2
                __belljar_clear_environment
                __belljar_assign -gx
                ;;
            env)
                __belljar_read_counted 2
                __belljar_assign -gx
                ;;
            run)
                __belljar_receive
                builtin return 0
                ;;
            *) __belljar_quit 76 ;;
        esac
    done
}

# run: id, name, last, input kind, input, count, arguments…, count, (name, value)…, code
__belljar_receive() {
    builtin local __belljar_name __belljar_kind __belljar_text
    __belljar_read 5
    __belljar_id=${__belljar_fields[0]} __belljar_name=${__belljar_fields[1]} __belljar_last=${__belljar_fields[2]}
    __belljar_kind=${__belljar_fields[3]} __belljar_text=${__belljar_fields[4]}
    __belljar_read_counted 1
    __belljar_arguments=("${__belljar_fields[@]}")
    __belljar_read_counted 2
    __belljar_assign -g
    __belljar_read 1
    __belljar_source_code=${__belljar_fields[0]}
    __belljar_fields=()
    __belljar_interrupted=0
    BASH_ARGV0=$__belljar_name
    if [[ $__belljar_kind == text ]]; then __belljar_input "$__belljar_text"; else __belljar_no_input; fi
    __belljar_compose
    __belljar_running=1
    builtin trap -- "${__belljar_traps[INT]-__belljar_interrupt}" INT
}

# Redirections for good are the one thing that `builtin exec` does not do.
__belljar_no_input() {
    builtin unset -f exec
    exec </dev/null
}

# Descriptor 0 with the given text. A here-string adds a newline, and needs no process.
__belljar_input() {
    builtin unset -f exec
    if [[ $1 == *$'\n' ]]; then
        exec <<<"${1%$'\n'}"
    else
        exec < <(\builtin printf '%s' "$1")
    fi
}

# What the loop evaluates: __belljar_prepare for the arguments, then __belljar_code. Options and traps that disturb the kernel are
# switched on again inside of the latter, so that a trace does not show the kernel's part; on one line, so that lines keep their
# numbers.
__belljar_compose() {
    builtin local __belljar_one __belljar_again=''
    __belljar_prepare=''
    if ((${#__belljar_arguments[@]} > 0)); then
        __belljar_prepare='\builtin set --'
        for __belljar_one in "${__belljar_arguments[@]}"; do __belljar_prepare+=" ${__belljar_one@Q}"; done
    fi
    for __belljar_one in ERR RETURN DEBUG; do
        [[ -v __belljar_traps[$__belljar_one] ]] || builtin continue
        __belljar_again+="\\builtin trap -- ${__belljar_traps[$__belljar_one]@Q} $__belljar_one;"
    done
    [[ $__belljar_options != *posix* ]] || __belljar_again+='\builtin set -o posix;'
    [[ -z ${__belljar_options#posix} ]] || __belljar_again+="\\builtin set -${__belljar_options#posix};"
    __belljar_began=1
    if [[ -n $__belljar_again ]]; then
        __belljar_began=0
        __belljar_again="__belljar_began=1;$__belljar_again"
    else
        # So that the code finds in $? how the run before it ended.
        __belljar_prepare+=$'\n'"__belljar_return $__belljar_previous"
    fi
    __belljar_code=$__belljar_again$__belljar_source_code
}

# Options that the kernel cannot live with are off between runs, and remembered. $1: what $- was.
__belljar_calm() {
    builtin local __belljar_letter __belljar_now=''
    __belljar_running=0
    if [[ -o posix ]]; then
        builtin set +o posix
        __belljar_now=posix
    fi
    builtin set +euxvET
    builtin trap '' INT
    builtin trap - DEBUG RETURN
    # Removed in a function it would be back after it, and then the `eval` around the next code would have it called once more. One
    # that is ignored has neither.
    if [[ -v __belljar_traps[ERR] ]]; then builtin trap '' ERR; else builtin trap - ERR; fi
    for __belljar_letter in e u x v E T; do
        [[ $1 != *"$__belljar_letter"* ]] || __belljar_now+=$__belljar_letter
    done
    # Unless the first line did not even parse: then they were not switched on again.
    ((__belljar_began == 0)) || __belljar_options=$__belljar_now
}

# The run came to its end by itself. $1: its status; then the positional parameters.
__belljar_after() {
    __belljar_calm "$-"
    __belljar_positional=("${@:2}")
    if ((__belljar_last == 1)); then
        builtin exit "$1"
    fi
    __belljar_conclude "$1"
    __belljar_answer "${__belljar_report[@]}"
}

# The run is over. Leaves the answer that tells of it in __belljar_report. $1: the status.
__belljar_conclude() {
    builtin local __belljar_type='' __belljar_message='' __belljar_line=''
    if (($1 == 2 && __belljar_interrupted == 0)); then __belljar_check_syntax; fi
    __belljar_report=("done" "$__belljar_id" "$1" "$__belljar_interrupted" "$__belljar_type" "$__belljar_message" "$__belljar_line")
    __belljar_id='' __belljar_code='' __belljar_source_code='' __belljar_previous=$1
    __belljar_no_input
}

# Whether the status 2 is that of a syntax error, and where. Another bash only reads the code.
__belljar_check_syntax() {
    builtin local __belljar_said __belljar_extended=+O
    [[ :$BASHOPTS: != *:extglob:* ]] || __belljar_extended=-O
    if __belljar_said=$(LC_ALL=C \builtin exec "$__belljar_bash" --norc --noprofile "$__belljar_extended" extglob -n 2>&1 <<<"$__belljar_source_code"); then
        builtin return 0
    fi
    __belljar_said=${__belljar_said%%$'\n'*}
    [[ $__belljar_said == *': line '+([0-9])': '* ]] || builtin return 0
    __belljar_said=${__belljar_said#*: line }
    __belljar_type=SyntaxError __belljar_line=${__belljar_said%%:*} __belljar_message=${__belljar_said#*: }
    __belljar_message=${__belljar_message:0:4000}
}

# --- Exits and interrupts -------------------------------------------------------------------------------------------

__belljar_interrupt() {
    builtin trap '' INT
    __belljar_interrupted=1
    builtin exit 130
}

# The shell is about to end: `exit`, `set -e`, an unset variable under `set -u`, an interrupt, a signal. With everything it
# knows it becomes a new one, in the same process. $1: the status, $2: what $- was; then the positional parameters.
__belljar_exit() {
    [[ -n $__belljar_id && $BASHPID == "$$" ]] || builtin return 0
    __belljar_calm "$2"
    # Inside of a function they are the function's.
    ((${#FUNCNAME[@]} > 1)) || __belljar_positional=("${@:3}")
    if ((__belljar_last == 1)); then
        __belljar_conclude "$1"
        __belljar_answer "${__belljar_report[@]}"
        __belljar_running=1
        [[ ! -v __belljar_traps[EXIT] ]] || builtin eval "${__belljar_traps[EXIT]}"
        builtin return 0
    fi
    if [[ -v __belljar_traps[EXIT] ]]; then
        (
            __belljar_return "$1"
            builtin eval "${__belljar_traps[EXIT]}"
        )
        builtin unset '__belljar_traps[EXIT]'
    fi
    # Told by the new shell, when it is ready for the next run and for an interrupt of it.
    __belljar_conclude "$1"
    __belljar_part
    # Who writes the state down ignores interrupts still. The new shell must not begin with that, or it could never catch one: so
    # this one catches them to the last, and main.sh passes none to a shell that does not.
    builtin eval "\\exec $__belljar_state_pipe< <(__belljar_dump)"
    exec <&"$__belljar_channel"
    __belljar_heed INT "${!__belljar_traps[@]}"
    exec -c -a bash "$__belljar_bash" --norc --noprofile -c "$__belljar_loop" bash "$__belljar_source" "$__belljar_loop" "$__belljar_bash" again
}

# Gives the new shell the engine's pipes as 1 and 2, and what the code has made of them beside that. Not if a redirection has been
# cut off: then they are those of a command that is over.
__belljar_part() {
    if ! __belljar_redirected; then
        # Unless it has closed them.
        { builtin eval "\\exec $__belljar_own_out>&1"; } 2>/dev/null
        [[ ! -e /dev/fd/2 ]] || builtin eval "\\exec $__belljar_own_err>&2"
    fi
    builtin eval "\\exec >&$__belljar_out 2>&$__belljar_err"
}

# Whether the shell is inside of a redirection. What it is to go back to then is at some number from 10 on, close-on-exec.
__belljar_redirected() {
    builtin local -i __belljar_at
    builtin local -a __belljar_lines
    for ((__belljar_at = 10; __belljar_at < __belljar_channel; __belljar_at++)); do
        [[ -e /dev/fd/$__belljar_at && -r /proc/self/fdinfo/$__belljar_at ]] || builtin continue
        builtin mapfile -t __belljar_lines <"/proc/self/fdinfo/$__belljar_at"
        ((!(8#${__belljar_lines[1]##*[!0-7]} & 8#2000000))) || builtin return 0
    done
    builtin return 1
}

# Traps for the given signals that do nothing, so that what is executed next does not ignore them: it could never catch one then.
__belljar_heed() {
    builtin local __belljar_signal
    for __belljar_signal; do
        case $__belljar_signal in EXIT | DEBUG | ERR | RETURN) ;; *) builtin trap 'builtin :' "$__belljar_signal" ;; esac
    done
}

__belljar_return() { builtin return "$1"; }

# Everything a new shell needs to go on, as text to be evaluated at its top level. Commands inside of $( ) and <( ) are parsed only
# when they run: the backslash is for aliases of the code.
__belljar_dump() {
    builtin local __belljar_name
    builtin local -a __belljar_names __belljar_aliases
    builtin local -A __belljar_shadows
    builtin shopt -u localvar_unset
    # An exit inside of a function leaves its local variables in sight. They are removed until the global one shows.
    if ((${#FUNCNAME[@]} > 2)); then
        builtin mapfile -t __belljar_names < <(__belljar_find_shadows)
        for __belljar_name in "${__belljar_names[@]}"; do __belljar_shadows[${__belljar_name%% *}]=${__belljar_name##* }; done
    fi
    builtin mapfile -t __belljar_names < <(\builtin compgen -v)
    for __belljar_name in "${__belljar_names[@]}"; do
        case $__belljar_name in
            __belljar_traps | __belljar_options | __belljar_report | __belljar_previous) ;;
            __belljar_* | _ | BASH | BASHOPTS | BASHPID | BASH_ALIASES | BASH_ARG[CV] | BASH_ARGV0 | BASH_CMDS | BASH_COMMAND | \
                BASH_EXECUTION_STRING | BASH_LINENO | BASH_REMATCH | BASH_SOURCE | BASH_SUBSHELL | BASH_VERSINFO | BASH_VERSION | \
                COMP_WORDBREAKS | DIRSTACK | EPOCHREALTIME | EPOCHSECONDS | EUID | FUNCNAME | GROUPS | HISTCMD | LINENO | PIPESTATUS | \
                PPID | RANDOM | SECONDS | SHELLOPTS | SRANDOM | UID) builtin continue ;;
        esac
        while ((${__belljar_shadows[$__belljar_name]:-0} > 0)); do
            builtin unset -v "$__belljar_name"
            ((__belljar_shadows[$__belljar_name]--))
        done
        builtin declare -p "$__belljar_name"
    done
    builtin shopt -p
    builtin mapfile -t __belljar_names < <(\builtin declare -F)
    for __belljar_name in "${__belljar_names[@]##* }"; do
        [[ $__belljar_name == __belljar_* || $__belljar_name == trap ]] || builtin declare -f "$__belljar_name"
    done
    # From here on the functions of the code are there.
    for __belljar_name in "${__belljar_names[@]}"; do
        [[ $__belljar_name == 'declare -f '* || $__belljar_name == *' __belljar_'* || $__belljar_name == *' trap' ]] ||
            builtin printf '\\builtin %s\n' "$__belljar_name"
    done
    builtin printf '\\builtin set --'
    ((${#__belljar_positional[@]} == 0)) || builtin printf ' %q' "${__belljar_positional[@]}"
    builtin printf '\n'
    __belljar_name=:$SHELLOPTS
    builtin printf '\\builtin set +o braceexpand +o hashall +o interactive-comments %s\n' "${__belljar_name//:/ -o }"
    __belljar_aliases=("${!BASH_ALIASES[@]}")
    for __belljar_name in "${__belljar_aliases[@]}"; do
        builtin printf '\\builtin alias -- %q=%q\n' "$__belljar_name" "${BASH_ALIASES[$__belljar_name]}"
    done
} 2>/dev/null

# Lines of a name and how many local variables hide the global one of that name. Only for a subshell: it removes them all.
__belljar_find_shadows() {
    builtin local __belljar_name
    builtin local -a __belljar_names
    builtin local -i __belljar_count
    builtin mapfile -t __belljar_names < <(\builtin compgen -v)
    for __belljar_name in "${__belljar_names[@]}"; do
        [[ $__belljar_name != __belljar_* ]] || builtin continue
        for ((__belljar_count = 0; __belljar_count < 100; __belljar_count++)); do
            builtin unset -v "$__belljar_name" || builtin break
            builtin declare -p "$__belljar_name" >/dev/null || builtin break
        done
        ((__belljar_count == 0)) || builtin printf '%s %s\n' "$__belljar_name" "$__belljar_count"
    done
} 2>/dev/null

# --- Traps of the code ----------------------------------------------------------------------------------------------

# In the kernel's shell the EXIT trap is the kernel's, and so is INT while the code has none. The code's are kept in
# __belljar_traps. In subshells `trap` is what it always was.
trap() {
    builtin local __belljar_action __belljar_one
    builtin local -i __belljar_result=0
    if [[ $BASHPID != "$$" ]]; then
        # Until it has traps of its own, a subshell shows those of the shell it was made by.
        # shellcheck disable=SC2064 # expanded by who calls it
        if [[ $# -eq 0 || $1 == -p ]] && __belljar_one=$(\builtin trap "$@") && [[ $__belljar_one == *__belljar_* ]]; then
            __belljar_list_traps "${@:2}"
        else
            builtin trap "$@"
        fi
        builtin return
    fi
    case ${1-} in
        '' | -p) [[ $# -eq 0 || ${1-} == -p ]] && { __belljar_list_traps "${@:2}"; builtin return; } ;;
        -l) builtin trap -l; builtin return ;;
        --) builtin shift ;;
        -?*)
            # shellcheck disable=SC2064
            builtin trap "$@"
            builtin return
            ;;
    esac
    if (($# == 1)) || [[ $1 == +([0-9]) ]]; then __belljar_action=-; else
        __belljar_action=$1
        builtin shift
    fi
    for __belljar_one; do __belljar_set_trap "$__belljar_action" "$__belljar_one" || __belljar_result=1; done
    builtin return "$__belljar_result"
}

__belljar_set_trap() {
    builtin local __belljar_signal "__belljar_command=$1"
    # What is no signal is refused by the builtin, in its own words.
    if ! __belljar_signal=$(__belljar_signal_name "$2"); then
        builtin trap -- "$1" "$2"
        builtin return
    fi
    case $__belljar_signal$1 in
        INT-) __belljar_command=__belljar_interrupt ;;
        # When a function returns, bash brings these back that were removed in it, but not those that were replaced.
        DEBUG- | ERR- | RETURN-) __belljar_command='builtin :' ;;
    esac
    if [[ $1 == - && -v __belljar_fatal[$__belljar_signal] ]]; then
        __belljar_end_by "$__belljar_signal"
    elif [[ $__belljar_signal != EXIT ]]; then
        builtin trap -- "$__belljar_command" "$__belljar_signal" || builtin return
    fi
    if [[ $1 == - ]]; then builtin unset "__belljar_traps[$__belljar_signal]"; else __belljar_traps[$__belljar_signal]=$1; fi
}

# The trap for a signal that the code has none for: the run ends as a script would. Between runs nothing happens. No function, which
# would have positional parameters of its own.
__belljar_end_by() {
    builtin trap -- "((__belljar_running == 0)) || \\builtin exit $((128 + __belljar_fatal[$1]))" "$1"
}

# SIGINT, int, 2 → INT. Fails for what is no signal.
__belljar_signal_name() {
    builtin local "__belljar_word=${1^^}"
    __belljar_word=${__belljar_word#SIG}
    case $__belljar_word in
        0 | EXIT) builtin printf EXIT ;;
        DEBUG | ERR | RETURN) builtin printf '%s' "$__belljar_word" ;;
        *[!0-9]*) builtin kill -l "$__belljar_word" >/dev/null 2>&1 && builtin printf '%s' "$__belljar_word" ;;
        *) builtin kill -l "$__belljar_word" 2>/dev/null ;;
    esac
}

__belljar_list_traps() {
    builtin local __belljar_signal
    builtin local -a __belljar_wanted
    __belljar_wanted=("$@")
    (($# > 0)) || __belljar_wanted=("${!__belljar_traps[@]}")
    for __belljar_signal in "${__belljar_wanted[@]}"; do
        __belljar_signal=$(__belljar_signal_name "$__belljar_signal") || builtin continue
        [[ -v __belljar_traps[$__belljar_signal] ]] || builtin continue
        builtin printf 'trap -- %s ' "${__belljar_traps[$__belljar_signal]@Q}"
        case $__belljar_signal in
            EXIT | DEBUG | ERR | RETURN) builtin printf '%s\n' "$__belljar_signal" ;;
            *) builtin printf 'SIG%s\n' "$__belljar_signal" ;;
        esac
    done
}

# --- Start ----------------------------------------------------------------------------------------------------------

# A copy of descriptor $1 with the number $2, for the shell alone. bash has no word for close-on-exec, but marks what it saves for the
# time of a redirection, at the lowest free number from 10 on; and the copy of a marked descriptor is marked.
__belljar_hide() {
    builtin local -i __belljar_free=10
    while [[ -e /dev/fd/$__belljar_free ]]; do __belljar_free+=1; done
    builtin eval "{ \\exec $2<&$__belljar_free; } $1</dev/null"
}

# What the code had made of 1 and 2 before an exit; nothing, if it had closed them.
__belljar_take_back() {
    if [[ -e /dev/fd/$__belljar_own_out ]]; then
        builtin eval "\\exec >&$__belljar_own_out $__belljar_own_out>&-"
    fi
    if [[ -e /dev/fd/$__belljar_own_err ]]; then
        builtin eval "\\exec 2>&$__belljar_own_err $__belljar_own_err>&-"
    fi
}

# $1: this text, $2: the loop, $3: the path of bash, $4: `new`, or `again` after an exit.
__belljar_start() {
    builtin trap '' INT
    builtin readonly "__belljar_source=$1" "__belljar_loop=$2" "__belljar_bash=$3"
    builtin declare -gA __belljar_traps
    __belljar_arguments=() __belljar_positional=() __belljar_fields=() __belljar_report=()
    __belljar_options='' __belljar_id='' __belljar_prepare='' __belljar_code='' __belljar_source_code='' __belljar_state=''
    __belljar_last=0 __belljar_interrupted=0 __belljar_began=0 __belljar_previous=0 __belljar_running=0
    # The channel came as descriptor 0.
    __belljar_hide 0 "$__belljar_channel"
    exec </dev/null
    __belljar_hide 1 "$__belljar_out"
    __belljar_hide 2 "$__belljar_err"
    if [[ $4 == again ]]; then
        __belljar_take_back
        builtin mapfile -d '' -u "$__belljar_state_pipe" __belljar_fields
        __belljar_state=${__belljar_fields[0]-}
        builtin eval "\\exec $__belljar_state_pipe<&-"
    else
        __belljar_report=('shell 1' ready)
        __belljar_state='\builtin set --; \builtin shopt -s expand_aliases; \builtin unset BASH_EXECUTION_STRING'
    fi
}

# After the state was evaluated.
__belljar_started() {
    builtin local __belljar_signal
    __belljar_state=''
    for __belljar_signal in "${!__belljar_fatal[@]}"; do
        __belljar_end_by "$__belljar_signal"
    done
    for __belljar_signal in "${!__belljar_traps[@]}"; do
        case $__belljar_signal in
            EXIT | INT | DEBUG | ERR | RETURN) ;;
            *) builtin trap -- "${__belljar_traps[$__belljar_signal]}" "$__belljar_signal" ;;
        esac
    done
    # shellcheck disable=SC2016
    builtin trap '{ __belljar_status=$? __belljar_flags=$-; \builtin set +eux; } >/dev/null 2>&1; __belljar_exit "$__belljar_status" "$__belljar_flags" "$@"' EXIT
    # Nothing to say: the state of the shell before has not arrived.
    ((${#__belljar_report[@]} > 0)) || __belljar_quit 70
    __belljar_answer "${__belljar_report[@]}"
    __belljar_report=()
}

builtin readonly -f trap
