//! What one tenant has at the moment, held against its quotas.

use std::time::Instant;

use crate::tenants::Quotas;

#[derive(Debug, Default)]
pub struct Share {
    pub runs: usize,
    pub memory_bytes: u64,
    /// Of what its code shows and calls, as long as that is on its way.
    pub shown: u64,
    /// Starts that are left, and since when that is so.
    starts: Option<(f64, Instant)>,
}

/// Which quota is used up, in words, and after how many seconds it is worth asking again.
pub struct Exceeded {
    pub kind: &'static str,
    pub reason: String,
    pub retry_after_s: u32,
}

impl Share {
    /// Whether so much more is allowed. A start of a run is taken from the rate if so.
    pub fn admit(
        &mut self,
        quotas: &Quotas,
        memory_bytes: u64,
        is_run: bool,
    ) -> Result<(), Exceeded> {
        if is_run && quotas.runs_at_once.is_some_and(|most| self.runs >= most) {
            return Err(Exceeded {
                kind: "runs_at_once",
                reason: "all runs that you may have at once are going".into(),
                retry_after_s: 1,
            });
        }
        if let Some(most) = quotas.memory_bytes
            && self.memory_bytes.saturating_add(memory_bytes) > most
        {
            return Err(Exceeded {
                kind: "memory",
                reason: format!("you may have {} MiB of memory at one time", most >> 20),
                retry_after_s: 1,
            });
        }
        if let (true, Some(rate)) = (is_run, quotas.runs_per_minute) {
            self.take_start(rate).map_err(|retry_after_s| Exceeded {
                kind: "rate",
                reason: format!("you may start {rate} runs in a minute"),
                retry_after_s,
            })?;
        }
        Ok(())
    }

    /// A token bucket that holds a minute's worth.
    fn take_start(&mut self, per_minute: u32) -> Result<(), u32> {
        let now = Instant::now();
        let full = f64::from(per_minute);
        let (left, since) = self.starts.unwrap_or((full, now));
        let left = (left + (now - since).as_secs_f64() * full / 60.0).min(full);
        self.starts = Some((left, now));
        if left >= 1.0 {
            self.starts = Some((left - 1.0, now));
            return Ok(());
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "at most 60 divided by one"
        )]
        let wait = ((1.0 - left) * 60.0 / full.max(1.0)).ceil() as u32;
        Err(wait.max(1))
    }
}
