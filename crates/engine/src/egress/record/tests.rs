use std::sync::atomic::Ordering;

use super::*;

fn reach(log: &Log, host: &str) -> Arc<Entry> {
    let entry = log.begin(host, 80);
    entry.allow("192.0.2.1:80".parse().unwrap());
    entry.received.store(7, Ordering::Relaxed);
    entry.end(None);
    entry
}

#[test]
fn refusals_do_not_push_out_what_was_reached() {
    let log = Log::default();
    reach(&log, "good");
    log.untold();
    let mark = log.mark();
    for port in 0..1500 {
        log.begin("a", port).refuse("no");
    }
    let (list, omitted) = log.all();
    assert_eq!((list.len(), omitted), (MAX_ENTRIES + 1, 500));
    assert!(list[0].allowed && list[0].host == "good");
    let (list, omitted) = log.result(&mark);
    assert_eq!((list.len(), omitted), (MAX_ENTRIES, 500));
    assert_eq!(list[MAX_ENTRIES - 1].port, 1499);
    assert_eq!(log.untold(), (Vec::new(), 0));
}

#[test]
fn refusals_that_are_alike_are_one_in_each_run() {
    let log = Log::default();
    for _ in 0..1500 {
        log.begin("a", 1).refuse("no");
    }
    log.begin("a", 1).refuse("never");
    let counts = |(list, omitted): (Vec<Connection>, u64)| {
        assert_eq!(omitted, 0);
        list.iter().map(|one| one.count).collect::<Vec<_>>()
    };
    assert_eq!(counts(log.untold()), [1500, 1]);
    let mark = log.mark();
    log.begin("a", 1).refuse("no");
    assert_eq!(counts(log.result(&mark)), [1]);
    assert_eq!(counts(log.all()), [1500, 1, 1]);
}

#[test]
fn what_was_reached_is_kept_for_as_long_as_it_differs() {
    let log = Log::default();
    reach(&log, "rare");
    for _ in 0..1500 {
        reach(&log, "often");
    }
    let (list, omitted) = log.all();
    assert_eq!(
        (list.len(), omitted, &*list[0].host),
        (MAX_ENTRIES, 0, "rare")
    );
    assert_eq!(list.iter().map(|one| one.count).sum::<u64>(), 1501);
    assert_eq!(
        list.iter().map(|one| one.bytes_received).sum::<u64>(),
        1501 * 7
    );
    for n in 0..1500 {
        reach(&log, &format!("{n}"));
    }
    let (list, omitted) = log.all();
    assert_eq!(list.len(), MAX_ENTRIES);
    assert_eq!(
        list.iter().map(|one| one.count).sum::<u64>() + omitted,
        3001
    );
}

#[test]
fn those_that_are_not_decided_push_out_nobody() {
    let log = Log::default();
    reach(&log, "good");
    let slow: Vec<_> = (0..3000).map(|port| log.begin("slow", port)).collect();
    for one in &slow {
        one.refuse("no");
    }
    let (list, omitted) = log.all();
    assert_eq!((list.len(), omitted), (MAX_ENTRIES + 1, 2000));
    assert_eq!(list[0].host, "good");
}

#[test]
fn names_push_out_nobody_and_are_pushed_out_by_nobody() {
    let log = Log::default();
    reach(&log, "good");
    for _ in 0..3 {
        let asked = log.ask("secret.good");
        asked.sent.store(5, Ordering::Relaxed);
        asked.answered(None);
    }
    for port in 0..1500 {
        log.begin("a", port).refuse("no");
        reach(&log, &format!("{port}"));
    }
    let (list, _) = log.all();
    let asked: Vec<_> = list.iter().filter(|one| one.port == 53).collect();
    assert_eq!(asked.len(), 1);
    assert_eq!((asked[0].count, asked[0].bytes_sent), (3, 15));
    assert!(asked[0].allowed && asked[0].host == "secret.good");
    let log = Log::default();
    reach(&log, "good");
    for n in 0..1500 {
        log.ask(&format!("{n}.good")).answered(None);
    }
    let (list, omitted) = log.all();
    assert_eq!((list.len(), omitted, &*list[0].host), (1001, 500, "good"));
}

#[test]
fn what_happens_between_two_results_is_in_the_second() {
    let log = Log::default();
    let hosts = |(list, _): (Vec<Connection>, u64)| {
        let told = list.into_iter();
        told.map(|one| (one.host, one.bytes_received))
            .collect::<Vec<_>>()
    };
    let told = |host: &str, bytes| (host.to_owned(), bytes);
    let run = log.mark();
    let kept = log.begin("kept", 80);
    kept.allow("192.0.2.1:80".parse().unwrap());
    kept.received.store(10, Ordering::Relaxed);
    let slow = log.begin("slow", 80);
    assert_eq!(hosts(log.result(&run)), [told("kept", 10), told("slow", 0)]);
    // Nobody runs.
    reach(&log, "between");
    kept.received.store(11, Ordering::Relaxed);
    let run = log.mark();
    kept.received.store(15, Ordering::Relaxed);
    slow.allow("192.0.2.1:80".parse().unwrap());
    let seen = hosts(log.result(&run));
    assert_eq!(seen, [told("kept", 5), told("slow", 0), told("between", 7)]);
    // Nothing is told twice, and what does nothing is not told.
    let run = log.mark();
    assert_eq!(hosts(log.result(&run)), []);
    // Unless it is cut.
    let run = log.mark();
    kept.refuse("the rules were changed");
    let (list, _) = log.result(&run);
    assert_eq!(list[0].reason.as_deref(), Some("the rules were changed"));
    assert_eq!(hosts(log.untold()), []);
    // All of it, once.
    let all = [told("kept", 15), told("slow", 0), told("between", 7)];
    assert_eq!(hosts(log.all()), all);
}

#[test]
fn two_at_one_time_are_both_told_what_was_tried_meanwhile() {
    let log = Log::default();
    let (first, second) = (log.mark(), log.mark());
    reach(&log, "both");
    assert_eq!(log.result(&second).0.len(), 1);
    reach(&log, "late");
    assert_eq!(log.result(&first).0.len(), 2);
    assert_eq!(log.untold().0.len(), 0);
}

#[test]
fn bytes_of_one_that_stands_for_others_are_its_own() {
    let log = Log::default();
    let open: Vec<_> = (0..2)
        .map(|_| {
            let entry = log.begin("kept", 80);
            entry.allow("192.0.2.1:80".parse().unwrap());
            entry.sent.store(100, Ordering::Relaxed);
            entry
        })
        .collect();
    log.untold();
    for entry in &open {
        entry.sent.store(101, Ordering::Relaxed);
        entry.end(None);
    }
    for n in 0..MAX_ENTRIES {
        reach(&log, &format!("{n}"));
    }
    let (list, _) = log.untold();
    let kept: Vec<_> = list.iter().filter(|one| one.host == "kept").collect();
    assert_eq!(kept.iter().map(|one| one.bytes_sent).sum::<u64>(), 2);
}
