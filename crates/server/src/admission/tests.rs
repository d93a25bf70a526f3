use belljar_spec::{LimitsPatch, Maxima};

use super::*;
use crate::tenants::Quotas;

const HOST: HostCapacity = HostCapacity {
    memory_bytes: 1 << 30,
    cpus: 2,
    open_files: 1 << 20,
    maxima: Maxima::NONE,
};

fn admission(queue: usize) -> Admission {
    admission_of(1000, queue)
}

fn admission_of(memory_bytes: u64, queue: usize) -> Admission {
    let mut config = Config::default();
    config.budget.memory_bytes = Some(memory_bytes);
    config.budget.queue = queue;
    config.budget.queue_timeout = Duration::from_secs(1);
    Admission::new(&config, &HOST, Metrics::new())
}

fn tenant(quotas: Quotas) -> Tenant {
    Tenant {
        name: "t".into(),
        admin: false,
        quotas,
    }
}

fn need(memory_bytes: u64) -> Need {
    Need {
        memory_bytes,
        cpus: 1,
    }
}

fn code<T>(result: Result<T, Error>) -> &'static str {
    result.map_or_else(|error| error.code(), |_| "ok")
}

#[tokio::test]
async fn what_does_not_fit_waits_its_turn_and_leaves_in_time() {
    let admission = admission(1);
    let tenant = tenant(Quotas::default());
    let first = admission.run(&tenant, need(800)).await.unwrap();
    assert_eq!(
        code(admission.run(&tenant, need(1001)).await),
        "invalid_limit"
    );
    assert_eq!(code(admission.run(&tenant, need(300)).await), "overloaded");
    assert_eq!(admission.waiting(), 0);
    let (admission2, tenant2) = (admission.clone(), tenant.clone());
    let waits = tokio::spawn(async move { admission2.run(&tenant2, need(300)).await });
    while admission.waiting() == 0 {
        tokio::task::yield_now().await;
    }
    // Small enough, but somebody came before; and the line is full.
    assert_eq!(code(admission.run(&tenant, need(1)).await), "overloaded");
    drop(first);
    let second = waits.await.unwrap().unwrap();
    assert_eq!(admission.lock().taken().memory_bytes, 300);
    drop(second);
    assert_eq!(admission.lock().taken(), Need::NONE);
}

#[tokio::test]
async fn one_who_leaves_the_line_leaves_nothing_behind() {
    let admission = admission(10);
    let tenant = tenant(Quotas::default());
    let first = admission.run(&tenant, need(900)).await.unwrap();
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let mut first = Some(first);
    for called in [false, true] {
        let mut waits = Box::pin(admission.run(&tenant, need(950)));
        assert!(waits.as_mut().poll(&mut context).is_pending());
        if called {
            // Called, and gone before it heard of it.
            first = None;
            assert_eq!(admission.lock().taken().memory_bytes, 950);
        }
        drop(waits);
        assert_eq!(admission.waiting(), 0);
    }
    drop(first);
    assert_eq!(admission.lock().taken(), Need::NONE);
    assert_eq!(admission.lock().shares["t"].runs, 0);
}

#[tokio::test]
async fn what_is_there_already_counts() {
    let admission = admission(0);
    let tenant = tenant(Quotas::default());
    let first = admission.run(&tenant, need(600)).await.unwrap();
    admission.set_ready(200);
    assert_eq!(code(admission.run(&tenant, need(300)).await), "overloaded");
    let mut held = admission.hold(100).unwrap();
    assert_eq!(code(admission.run(&tenant, need(150)).await), "overloaded");
    let second = admission.run(&tenant, need(100)).await.unwrap();
    // A quarter for all of them.
    assert_eq!(code(held.grow(151)), "overloaded");
    assert!(held.grow(150).is_ok() && admission.hold(1).is_err());
    drop((held, first, second));
    admission.set_ready(0);
    assert_eq!(admission.lock().held, 0);
    // Alone, what fits the budget runs, whatever waits ready.
    admission.set_ready(900);
    drop(admission.run(&tenant, need(1000)).await.unwrap());
}

/// Limits of a sandbox whose runs print nothing.
fn limits(memory_bytes: u64) -> Limits {
    let patch = LimitsPatch::default();
    let limits = patch.resolve(&patch, &HOST).unwrap();
    Limits {
        memory_bytes,
        output_bytes: 0,
        cpus: 1.0,
        ..limits
    }
}

const MIB: u64 = 1 << 20;

#[tokio::test]
async fn a_kept_sandbox_counts_as_a_whole_only_while_something_runs_in_it() {
    let admission = admission_of(100 * MIB, 10);
    let tenant = tenant(Quotas::default());
    let taken = || admission.lock().taken().memory_bytes;
    let first = admission
        .sandbox(&tenant, &limits(60 * MIB), 0)
        .await
        .unwrap();
    let second = admission
        .sandbox(&tenant, &limits(60 * MIB), 0)
        .await
        .unwrap();
    assert_eq!(taken(), 2 * LEAST);
    let run = admission
        .run_inside(&tenant, &first, need(1))
        .await
        .unwrap();
    assert_eq!(taken(), 60 * MIB + LEAST + 1);
    // A second one in the same sandbox takes no more of it, and the other has to wait.
    let beside = admission
        .run_inside(&tenant, &first, need(1))
        .await
        .unwrap();
    assert_eq!(taken(), 60 * MIB + LEAST + 2);
    let mut waits = Box::pin(admission.run_inside(&tenant, &second, need(1)));
    assert!(futures_util::poll!(&mut waits).is_pending());
    // One that is awake already may pass it, and the sandbox stays awake for the last.
    drop(run);
    drop(
        admission
            .run_inside(&tenant, &first, need(1))
            .await
            .unwrap(),
    );
    assert!(futures_util::poll!(&mut waits).is_pending());
    first.recount(30 * MIB);
    assert_eq!(taken(), 60 * MIB + LEAST + 1);
    drop(beside);
    let run = waits.await.unwrap();
    assert_eq!(taken(), 90 * MIB + 1);
    // A sandbox may go while something runs in it.
    drop(second);
    assert_eq!(taken(), 30 * MIB + 1);
    drop((run, first));
    assert_eq!(admission.lock().taken(), Need::NONE);
}

#[tokio::test]
async fn what_sandboxes_grow_to_counts() {
    let admission = admission_of(100 * MIB, 0);
    let tenant = tenant(Quotas::default());
    let kept = admission
        .sandbox(&tenant, &limits(90 * MIB), 0)
        .await
        .unwrap();
    let other = admission
        .sandbox(&tenant, &limits(90 * MIB), 0)
        .await
        .unwrap();
    drop(admission.run(&tenant, need(60 * MIB)).await.unwrap());
    kept.recount(50 * MIB);
    assert_eq!(
        code(admission.run(&tenant, need(60 * MIB)).await),
        "overloaded"
    );
    // Together they may come to have more than there is.
    other.recount(80 * MIB);
    assert_eq!(code(admission.run(&tenant, need(0)).await), "ok");
    assert_eq!(code(admission.run(&tenant, need(1)).await), "overloaded");
    let run = admission.run(&tenant, need(0)).await.unwrap();
    assert_eq!(admission.excess(130 * MIB), 30 * MIB);
    assert_eq!(admission.excess(100 * MIB), 0);
    drop(run);
    // Never more than the limit, never less than what any has.
    other.recount(u64::MAX);
    kept.recount(0);
    assert_eq!(admission.lock().taken().memory_bytes, 90 * MIB + LEAST);
}

#[tokio::test]
async fn who_can_make_room_passes_who_waits_for_it() {
    let admission = admission_of(100 * MIB, 10);
    let tenant = tenant(Quotas::default());
    let kept = admission
        .sandbox(&tenant, &limits(90 * MIB), 0)
        .await
        .unwrap();
    kept.recount(90 * MIB);
    let mut waits = Box::pin(admission.run(&tenant, need(50 * MIB)));
    assert!(futures_util::poll!(&mut waits).is_pending());
    // Others stand behind it, but runs of the sandbox that is there do not.
    let mut other = Box::pin(admission.run(&tenant, need(10)));
    assert!(futures_util::poll!(&mut other).is_pending());
    drop(other);
    let cores = Need {
        memory_bytes: 10,
        cpus: admission.total.cpus,
    };
    let run = admission.run_inside(&tenant, &kept, cores).await.unwrap();
    // Also those for whom there is no core at first.
    let mut next = Box::pin(admission.run_inside(&tenant, &kept, cores));
    assert!(futures_util::poll!(&mut next).is_pending());
    drop(run);
    drop(next.await.unwrap());
    drop(kept);
    drop(waits.await.unwrap());
    assert_eq!(admission.lock().taken(), Need::NONE);
}

#[tokio::test]
async fn quotas_hold() {
    let admission = admission(10);
    let tenant = tenant(Quotas {
        runs_at_once: Some(2),
        runs_per_minute: Some(4),
        memory_bytes: Some(500),
        sandboxes: None,
    });
    let first = admission.run(&tenant, need(300)).await.unwrap();
    assert_eq!(code(admission.run(&tenant, need(300)).await), "overloaded");
    let second = admission.run(&tenant, need(100)).await.unwrap();
    assert_eq!(code(admission.run(&tenant, need(1)).await), "overloaded");
    drop((first, second));
    drop(admission.run(&tenant, need(1)).await.unwrap());
    drop(admission.run(&tenant, need(1)).await.unwrap());
    let error = admission.run(&tenant, need(1)).await.map(drop).unwrap_err();
    assert!(
        matches!(
            error,
            Error::Overloaded {
                retry_after_s: 1..=60,
                ..
            }
        ),
        "{error}"
    );
}

#[tokio::test]
async fn what_is_left_of_a_run_counts_until_it_is_sent() {
    let admission = admission_of(1 << 20, 0);
    let tenant = tenant(Quotas {
        runs_at_once: Some(1),
        ..Quotas::default()
    });
    let first = admission.run(&tenant, need(1 << 19)).await.unwrap();
    // What is left may be more than was reckoned with.
    let left = first.into_answer(900 << 10).unwrap();
    let taken = admission.lock().taken();
    assert_eq!((taken.memory_bytes, taken.cpus), (900 << 10, 0));
    assert_eq!(
        code(admission.run(&tenant, need(1 << 19)).await),
        "overloaded"
    );
    // It is no run any more, and a small one is nothing at all.
    let small = admission.run(&tenant, need(100)).await.unwrap();
    assert!(small.into_answer(1000).is_none());
    drop(left);
    assert_eq!(admission.lock().taken(), Need::NONE);
    assert_eq!(admission.lock().shares["t"].memory_bytes, 0);
    drop(admission.run(&tenant, need(1 << 20)).await.unwrap());
}

/// Beside its limit, in the budget and among the quotas, as long as it lives.
#[tokio::test]
async fn what_is_put_into_a_sandbox_counts() {
    let admission = admission_of(100 * MIB, 10);
    let tenant = tenant(Quotas {
        memory_bytes: Some(40 * MIB),
        ..Quotas::default()
    });
    let counted = || {
        let budget = admission.lock();
        (budget.shares["t"].memory_bytes / MIB, budget.beside / MIB)
    };
    let limits = limits(20 * MIB);
    let kept = admission.sandbox(&tenant, &limits, 10 * MIB).await.unwrap();
    assert_eq!(counted(), (30, 10));
    assert_eq!(code(kept.put(11 * MIB)), "overloaded");
    kept.put(10 * MIB).unwrap();
    assert_eq!(counted(), (40, 20));
    kept.set_beside(MIB);
    assert_eq!(counted(), (21, 1));
    drop(kept);
    assert_eq!(counted(), (0, 0));
    assert_eq!(admission.lock().taken(), Need::NONE);
}

/// All sandboxes together may have their share of that, and beyond it what is free.
#[tokio::test]
async fn what_is_put_into_sandboxes_is_bounded() {
    let admission = admission_of(100 * MIB, 10);
    let tenant = tenant(Quotas::default());
    let kept = admission
        .sandbox(&tenant, &limits(4 * MIB), 0)
        .await
        .unwrap();
    let run = admission.run(&tenant, need(90 * MIB)).await.unwrap();
    kept.put(25 * MIB).unwrap();
    assert_eq!(code(kept.put(MIB)), "overloaded");
    drop(run);
    kept.put(MIB).unwrap();
}

#[test]
fn what_one_tenant_shows_leaves_room_for_others() {
    // An eighth of the budget is for what is shown.
    let mut admission = admission_of(8000, 1);
    assert!(admission.nothing_shown("one").grow(900).is_ok());
    admission.is_shared = true;
    let mut first = admission.nothing_shown("one");
    assert!(first.grow(400).is_ok());
    assert!(first.another(200).is_err() && first.grow(101).is_err());
    let mut other = admission.nothing_shown("other");
    assert!(other.grow(500).is_ok());
    drop(first);
    assert!(admission.nothing_shown("one").grow(500).is_ok());
    assert_eq!(admission.lock().held, 500);
    drop(other);
    assert_eq!(admission.lock().held, 0);
}
