//! Containers, networks and volumes whose makers have died without taking them along.

use std::time::Duration;

use bollard::query_parameters::RemoveVolumeOptions;
use futures_util::StreamExt;

use super::owner::Owner;
use super::{Settings, container};

/// How often a daemon looks: what another process of ours leaves while it lives, nobody else would find.
const EVERY: Duration = Duration::from_mins(1);
/// An engine that stands still is left alone until next time.
const PATIENCE: Duration = Duration::from_mins(2);
/// Removals at a time: an engine takes tenths of a second for each, and others wait for it too.
const AT_ONCE: usize = 4;

/// Looks now, and again for as long as it is polled. Without an engine there is nothing to do, and nothing to say.
pub async fn for_ever(settings: Settings) {
    repeat(settings, EVERY).await;
}

async fn repeat(settings: Settings, every: Duration) {
    let owner = Owner::this();
    loop {
        let look = async {
            if let Ok(client) = settings.client()
                && let Ok(client) = client.negotiate_version().await
            {
                once(&client, &owner).await;
            }
        };
        let _ = tokio::time::timeout(PATIENCE, look).await;
        tokio::time::sleep(every).await;
    }
}

/// Removes what is left now.
pub async fn once(client: &bollard::Docker, owner: &Owner) {
    let containers = owner.orphans(client).await.unwrap_or_default();
    futures_util::stream::iter(containers)
        .for_each_concurrent(AT_ONCE, async |id| container::remove(client, &id).await)
        .await;
    for id in owner.orphaned_networks(client).await.unwrap_or_default() {
        // One whose container is still there stays until next time.
        let _ = client.remove_network(&id).await;
    }
    remove_volumes(client, owner.orphaned_volumes(client).await).await;
}

/// Removes the volumes that were for this process only.
pub async fn own_volumes(client: &bollard::Docker, owner: &Owner) {
    remove_volumes(client, owner.own_volumes(client).await).await;
}

async fn remove_volumes(
    client: &bollard::Docker,
    names: Result<Vec<String>, bollard::errors::Error>,
) {
    for name in names.unwrap_or_default() {
        // One that a container still uses stays until next time.
        let _ = client
            .remove_volume(&name, None::<RemoveVolumeOptions>)
            .await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;
    use std::sync::mpsc;

    /// An engine that has one container of a dead process, and tells what it is asked for.
    fn engine(labels: String) -> (String, mpsc::Receiver<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("tcp://{}", listener.local_addr().unwrap());
        let (sender, heard) = mpsc::channel();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let lines = BufReader::new(stream.try_clone().unwrap()).lines();
                let lines: Vec<String> = lines
                    .map_while(Result::ok)
                    .take_while(|line| !line.is_empty())
                    .collect();
                let first = lines.first().cloned().unwrap_or_default();
                let body = if first.contains("/version") {
                    r#"{"ApiVersion":"1.41","MinAPIVersion":"1.12"}"#.to_owned()
                } else if first.contains("/containers/json") {
                    format!(r#"[{{"Id":"left","Labels":{labels}}}]"#)
                } else {
                    "{}".to_owned()
                };
                let length = body.len();
                let answer = format!(
                    "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
                );
                let _ = stream.write_all(answer.as_bytes());
                if sender.send(first).is_err() {
                    return;
                }
            }
        });
        (address, heard)
    }

    #[tokio::test]
    async fn a_daemon_looks_more_than_once() {
        let labels = r#"{"belljar.machine":"x","belljar.process":"boot/4294967295/1"}"#;
        let (address, heard) = engine(labels.to_owned());
        let settings = Settings {
            host: Some(address),
            ..Settings::default()
        };
        let sweeping = tokio::spawn(repeat(settings, Duration::from_millis(1)));
        let removed = tokio::task::spawn_blocking(move || {
            let removals = heard.iter().filter(|line| line.starts_with("DELETE"));
            removals.take(2).collect::<Vec<_>>()
        });
        let removed = tokio::time::timeout(Duration::from_secs(30), removed).await;
        sweeping.abort();
        for line in removed.unwrap().unwrap() {
            assert!(line.contains("/containers/left?"), "{line}");
        }
    }
}
