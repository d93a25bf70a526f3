//! Staying awake for news that are about to come, where nobody else wants the core: on a virtual machine, to wake one takes longer than most of what is
//! waited for.

use std::thread;
use std::time::{Duration, Instant};

/// A short run is over by then.
const AWAKE: Duration = Duration::from_micros(300);

/// Ends after that. Until then the thread sleeps at no time, and does whatever else there is to do.
pub(crate) async fn stay_awake() {
    let until = Instant::now() + AWAKE;
    while Instant::now() < until {
        // Whoever the news are to come from may have been put on this core.
        thread::yield_now();
        tokio::task::yield_now().await;
    }
}
