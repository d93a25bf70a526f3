//! What the engine tells of our containers: that the kernel killed something for want of memory, and that they died.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bollard::Docker;
use bollard::query_parameters::EventsOptionsBuilder;
use futures_util::StreamExt;
use tokio::sync::watch;

use super::owner::Owner;

/// After the engine has hung up.
const PAUSE: Duration = Duration::from_secs(1);

/// What has happened to one container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct News {
    pub oom_kills: u64,
    pub dead: bool,
}

#[derive(Default)]
pub struct Events {
    containers: Mutex<HashMap<String, watch::Sender<News>>>,
}

impl Events {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, watch::Sender<News>>> {
        // Each change of the map is one call.
        self.containers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Listens for as long as somebody holds this.
    pub fn listen(client: &Docker, owner: &Owner) -> Arc<Self> {
        let events = Arc::new(Self::default());
        let (weak, client) = (Arc::downgrade(&events), client.clone());
        let filters = HashMap::from([
            ("type", vec!["container".to_owned()]),
            ("label", vec![owner.filter()]),
            ("event", vec!["oom".to_owned(), "die".to_owned()]),
        ]);
        tokio::spawn(async move {
            while weak.strong_count() > 0 {
                let options = EventsOptionsBuilder::default().filters(&filters).build();
                let mut stream = std::pin::pin!(client.events(Some(options)));
                while let Some(Ok(message)) = stream.next().await {
                    let Some(events) = weak.upgrade() else { return };
                    let id = message.actor.and_then(|actor| actor.id).unwrap_or_default();
                    let action = message.action.unwrap_or_default();
                    if let Some(news) = events.lock().get(&id) {
                        news.send_modify(|news| match action.as_str() {
                            "oom" => news.oom_kills += 1,
                            _ => news.dead = true,
                        });
                    }
                }
                tokio::time::sleep(PAUSE).await;
            }
        });
        events
    }

    /// News of a container, from now on until it is forgotten.
    pub fn follow(&self, id: &str) -> watch::Receiver<News> {
        let (sender, receiver) = watch::channel(News::default());
        self.lock().insert(id.to_owned(), sender);
        receiver
    }

    pub fn forget(&self, id: &str) {
        self.lock().remove(id);
    }
}
