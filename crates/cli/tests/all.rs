//! What a user can do with the binary, through the binary.
//!
//! `BELLJAR_BIN` names another build to test. `limits`, `isolation` and `lifecycle` ask for no privilege, so they
//! also run as an ordinary user and in the guest; `rootless` needs root, to become somebody else.
#![expect(clippy::unwrap_used, reason = "these are tests, helpers included")]

mod suite {
    mod backend;
    mod bad_input;
    mod daemon;
    mod deploy;
    mod docker;
    mod doctor;
    mod files;
    mod harness;
    mod host;
    mod image_files;
    mod image_hostile;
    mod image_layers;
    mod image_private;
    mod image_registry;
    mod image_store;
    mod images;
    mod isolation;
    mod large_pages;
    mod latency;
    mod lifecycle;
    mod limits;
    mod lost;
    mod moulds;
    mod network;
    mod own_runtimes;
    mod packages;
    mod policy;
    mod regressions;
    mod repl;
    mod rootless;
    mod run;
    mod runtimes;
    mod secrets;
    mod serve_channel;
    mod serve_client;
    mod serve_copy;
    mod serve_debug;
    mod serve_errors;
    mod serve_exec;
    mod serve_fair;
    mod serve_files;
    mod serve_guard;
    mod serve_history;
    mod serve_load;
    mod serve_memory;
    mod serve_once;
    mod serve_readers;
    mod serve_refused;
    mod serve_room;
    mod serve_runs;
    mod serve_sandboxes;
    mod serve_start;
    mod serve_tenants;
    mod serve_terminal;
    mod serve_uploads;
    mod servers;
    mod streams;
}
