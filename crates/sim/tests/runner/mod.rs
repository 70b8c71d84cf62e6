//! Runs many seeds on all processors, for the simulations of several crates. `HEADRACE_SIM_SEEDS` says how many, or
//! `HEADRACE_SIM_SECONDS` how long; `HEADRACE_SIM_FIRST` says where they begin; `HEADRACE_SIM_SEED` replays one.
#![allow(
    clippy::disallowed_methods,
    reason = "a test takes its settings from the environment, and time is its limit"
)]

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How much is run where nothing else is asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Usual {
    /// For so long.
    pub(crate) seconds: u64,
    /// So many seeds at least, however long they take: with fewer, some fault might be in none of them.
    pub(crate) seeds_min: u64,
}

/// What came of them.
#[derive(Debug)]
pub(crate) struct Ran<T> {
    /// The first seed.
    pub(crate) first: u64,
    /// How many were run.
    pub(crate) seeds: u64,
    /// What those that hold came to.
    pub(crate) sum: T,
    /// Those that do not hold, in order, and why.
    pub(crate) failed: Vec<(u64, String)>,
}

impl<T> Ran<T> {
    /// What they came to.
    ///
    /// # Panics
    /// Some do not hold.
    pub(crate) fn held(self) -> T {
        let lines: Vec<_> = self.failed.iter().map(|(seed, why)| format!("seed {seed}: {why}")).collect();
        let (failed, seeds) = (self.failed.len(), self.seeds);
        if let Some((seed, _)) = self.failed.first() {
            panic!(
                "{failed} of {seeds} seeds fail. Replay one with HEADRACE_SIM_SEED={seed}\n{}",
                lines.join("\n")
            );
        }
        self.sum
    }
}

fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is no whole number: {text}")))
}

/// The one seed that is asked for.
pub(crate) fn replayed() -> Option<u64> {
    setting("HEADRACE_SIM_SEED")
}

/// What a panic says.
pub(crate) fn said(panic: &(dyn Any + Send)) -> String {
    let said = panic.downcast_ref::<String>().map(String::as_str);
    format!("panic: {}", said.or(panic.downcast_ref::<&str>().copied()).unwrap_or("without a message"))
}

/// What a seed comes to, or why it does not hold; a panic is such a reason.
fn outcome<T>(run: impl Fn(u64) -> Result<T, String>, seed: u64) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(|| run(seed))).unwrap_or_else(|panic| Err(said(&*panic)))
}

/// Runs them; `add` sums up.
pub(crate) fn run_seeds<T: Send>(
    usual: Usual,
    nothing: T,
    run: impl Fn(u64) -> Result<T, String> + Sync,
    add: impl Fn(&mut T, T) + Sync,
) -> Ran<T> {
    let first = setting("HEADRACE_SIM_FIRST").unwrap_or(1);
    let count = setting("HEADRACE_SIM_SEEDS");
    let least = first + count.unwrap_or(usual.seeds_min);
    let until =
        Instant::now() + Duration::from_secs(setting("HEADRACE_SIM_SECONDS").unwrap_or(usual.seconds));
    let (next, ran) = (AtomicU64::new(first), AtomicU64::new(0));
    let (sum, failed) = (Mutex::new(nothing), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= least && (count.is_some() || Instant::now() >= until) {
                        return;
                    }
                    ran.fetch_add(1, Ordering::Relaxed);
                    match outcome(&run, seed) {
                        Ok(one) => add(&mut sum.lock().unwrap(), one),
                        Err(why) => failed.lock().unwrap().push((seed, why)),
                    }
                }
            });
        }
    });
    let (sum, mut failed) = (sum.into_inner().unwrap(), failed.into_inner().unwrap());
    failed.sort();
    Ran { first, seeds: ran.into_inner(), sum, failed }
}
