use super::*;

#[test]
fn a_set_that_somebody_writes_is_left_alone() {
    let place = tempfile::tempdir().unwrap();
    for name in ["sets", "locks", "layers/whole"] {
        fs::create_dir_all(place.path().join(name)).unwrap();
    }
    let set = |name: &str, layer: &str| {
        let text = format!(r#"{{"layer": "{layer}", "wanted": [], "index": ""}}"#);
        let path = place.path().join("sets").join(name);
        fs::write(&path, text).unwrap();
        path
    };
    let (whole, gone) = (set("a", "whole"), set("b", "gone"));
    let (busy, fresh) = (set("c", "gone"), set("c.new", "gone"));
    let held = lock::attempt(&place.path().join("locks/c")).unwrap();
    assert!(held.is_some());
    let collect = || Packages::collect(place.path(), &Verified::default(), u64::MAX);
    collect();
    assert!(whole.exists() && !gone.exists());
    assert!(busy.exists() && fresh.exists());
    drop(held);
    collect();
    assert!(whole.exists() && !busy.exists() && !fresh.exists());
}

#[test]
fn for_want_of_space_those_go_that_nobody_uses_oldest_first() {
    let place = tempfile::tempdir().unwrap();
    for name in ["sets", "locks"] {
        fs::create_dir_all(place.path().join(name)).unwrap();
    }
    let now = SystemTime::now();
    let layer = |name: &str, hours: u64| {
        let path = place.path().join("layers").join(name);
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("x"), vec![0; 1 << 20]).unwrap();
        let used = now - Duration::from_hours(hours);
        File::open(&path).unwrap().set_modified(used).unwrap();
        path
    };
    let (used, known) = (layer("used", 9), layer("known", 8));
    let (other, fresh) = (layer("other", 7), layer("fresh", 1));
    let text = r#"{"layer": "other", "wanted": [], "index": "", "bytes": 1048576}"#;
    let set = place.path().join("sets/s");
    fs::write(&set, text).unwrap();
    let verified = Verified::default();
    let hold = |path: &Path| {
        let file = File::open(path).unwrap();
        file.lock_shared().unwrap();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let held = Arc::new(file);
        verified.lock().insert(name, Arc::clone(&held));
        InUse(held)
    };
    let in_use = hold(&used);
    drop(hold(&known));
    Packages::collect(place.path(), &verified, 7 << 19);
    assert!(used.exists() && !known.exists() && other.exists() && set.exists());
    Packages::collect(place.path(), &verified, 5 << 19);
    assert!(used.exists() && !other.exists() && !set.exists() && fresh.exists());
    drop(in_use);
    Packages::collect(place.path(), &verified, 3 << 19);
    assert!(!used.exists() && fresh.exists() && verified.lock().is_empty());
}

#[test]
fn only_what_an_index_has() {
    let hash = format!("a==1 --hash=sha256:{}", "0".repeat(64));
    for good in [
        "numpy",
        "numpy==2.*",
        "numpy >= 2, < 3",
        "a[b,c]~=1.0",
        &hash,
    ] {
        assert!(check(Installer::Pip, &[good.into()]).is_ok(), "{good}");
    }
    for good in ["lodash", "lodash@4", "@types/node", "@types/node@^20.1.0"] {
        assert!(check(Installer::Npm, &[good.into()]).is_ok(), "{good}");
    }
    for bad in [
        "-e.",
        "--index-url=http://x",
        "./x",
        "/etc/passwd",
        "a @ https://x/y",
        "git+https://x",
        "a;b",
        "a\nb",
        "",
        "a --hash=sha256:1",
        "a --no-deps",
        "a -r/etc/passwd",
    ] {
        assert!(check(Installer::Pip, &[bad.into()]).is_err(), "{bad}");
    }
    for bad in [
        "-g",
        "user/repo",
        "a@npm:b",
        "file:x",
        "../x",
        "@a",
        "@a/b/c",
        "https://x",
        "a b",
        "",
    ] {
        assert!(check(Installer::Npm, &[bad.into()]).is_err(), "{bad}");
    }
}

#[tokio::test]
async fn a_layer_is_verified_off_the_runtime() {
    let place = tempfile::tempdir().unwrap();
    let making = place.path().join("layers/making");
    fs::create_dir_all(&making).unwrap();
    fs::create_dir_all(place.path().join("sets")).unwrap();
    let file = File::create(making.join("x")).unwrap();
    file.set_len(4 << 20).unwrap();
    let digest = layer::seal(&making).unwrap();
    let whole = place.path().join("layers").join(&digest);
    fs::rename(&making, &whole).unwrap();
    let text = format!(r#"{{"layer": "{digest}", "wanted": [], "index": ""}}"#);
    fs::write(place.path().join("sets/s"), text).unwrap();
    let packages = Packages::new(PackageSettings::at(place.path().to_owned()));
    let mut known = Box::pin(packages.known("s"));
    assert!(futures_util::poll!(&mut known).is_pending());
    assert_eq!(known.await.unwrap().0, whole);
}

#[test]
fn pip_inside_trusts_an_index_without_tls() {
    let mut settings = PackageSettings::at("/nowhere".into());
    settings.python = Some("http://index.test:8080/simple".into());
    let variables = |settings: &PackageSettings| {
        let rules = "index.test:8080,index.test".parse().unwrap();
        Packages::new(settings.clone()).variables(&rules)
    };
    assert_eq!(variables(&settings)["PIP_TRUSTED_HOST"], "index.test");
    settings.python = Some("https://index.test/simple".into());
    assert!(!variables(&settings).contains_key("PIP_TRUSTED_HOST"));
}
