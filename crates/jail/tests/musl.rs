//! The library that copies warm interpreters has no C library of its own, so that it fits those of images with musl too.
//!
//! A small program stands in for the interpreter, with the functions that the library calls; `make test-musl` has a real one.

use std::fs;
use std::path::Path;
use std::process::Command;

const LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/zygote.so"));

/// Loads the library, takes the first function out of its module, and calls it with a socket: the word that orders can come
/// must arrive, and a hang-up must end the process with 0.
const INTERPRETER: &str = r#"
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
struct method { const char *name; void *(*function)(void *, void *); int flags; const char *doc; };
struct module { long refcount; void *kind, *init; long index; void *copy; const char *name, *doc; long size; struct method *methods; };
static struct module *made;
static void *made_up(void) { return 0; }
void *PyModule_Create2(struct module *definition, int version) { made = definition; return version == 3 ? definition : 0; }
long PyLong_AsLong(void *object) { return *(long *)object; }
void *PyLong_FromLong(long value) { static long kept; kept = value; return &kept; }
void *PyBytes_FromStringAndSize(const char *bytes, long length) { return 0; }
struct allocator { void *context, *malloc, *calloc, *realloc, *free; };
void PyMem_GetAllocator(int domain, struct allocator *to) { *to = (struct allocator){0, made_up, made_up, made_up, made_up}; }
void PyMem_SetAllocator(int domain, struct allocator *from) {}
int PyBytes_AsStringAndSize(void *object, char **bytes, long *length) { *bytes = object; *length = 0; return 0; }
void PyOS_BeforeFork(void) {}
void PyOS_AfterFork_Parent(void) {}
void PyOS_AfterFork_Child(void) {}
int main(int count, char **words) {
    void *library = dlopen(words[1], RTLD_NOW);
    if (!library) { puts(dlerror()); return 2; }
    void *(*init)(void) = (void *(*)(void))dlsym(library, "PyInit__belljar");
    if (!init || !init() || strcmp(made->name, "_belljar") || strcmp(made->methods[0].name, "serve")) return 3;
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends)) return 4;
    int child = fork();
    if (!child) { long fd = ends[1]; close(ends[0]); made->methods[0].function(0, &fd); _exit(5); }
    close(ends[1]);
    unsigned char answer[8] = {1, 1, 1, 1, 1, 1, 1, 1}, zero[8] = {0};
    if (read(ends[0], answer, 8) != 8 || memcmp(answer, zero, 8)) return 6;
    close(ends[0]);
    int status;
    waitpid(child, &status, 0);
    return status;
}
"#;

#[test]
fn the_library_loads_with_musl_and_with_glibc() {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (source, library) = (dir.join("interpreter.c"), dir.join("zygote.so"));
    fs::write(&source, INTERPRETER).unwrap();
    fs::write(&library, LIBRARY).unwrap();
    for (compiler, package) in [("musl-gcc", "musl-tools"), ("gcc", "gcc")] {
        let program = dir.join(format!("interpreter-{compiler}"));
        let compiled = Command::new(compiler)
            .args(["-rdynamic", "-o"])
            .args([&program, &source])
            .output();
        let compiled = compiled.unwrap_or_else(|error| {
            panic!("this test needs {compiler} ({error}): apt-get install {package}")
        });
        assert!(compiled.status.success(), "{compiler}: {compiled:?}");
        let ran = Command::new(&program).arg(&library).output().unwrap();
        assert!(ran.status.success(), "{compiler}: {ran:?}");
    }
}
