//! Whose a container is: so that what a killed process left is found, and nobody else's is touched.

use std::collections::HashMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};

use bollard::Docker;
use bollard::models::Volume;
use bollard::query_parameters::{
    ListContainersOptionsBuilder, ListNetworksOptionsBuilder, ListVolumesOptionsBuilder,
};

/// On every container of ours.
const MACHINE: &str = "belljar.machine";
const PROCESS: &str = "belljar.process";

/// This process, in a way that outlives it: several machines may share an engine.
#[derive(Clone, Debug)]
pub struct Owner {
    /// This machine, and the process namespace in which numbers mean something.
    machine: String,
    /// Boot, number and time of birth.
    process: String,
}

impl Owner {
    pub fn this() -> Self {
        let mut hasher = DefaultHasher::new();
        (read("/etc/machine-id"), read("/proc/sys/kernel/hostname")).hash(&mut hasher);
        fs::read_link("/proc/self/ns/pid").ok().hash(&mut hasher);
        let pid = std::process::id();
        Self {
            machine: format!("{:016x}", hasher.finish()),
            process: mark(pid).unwrap_or_default(),
        }
    }

    pub fn labels(&self) -> HashMap<String, String> {
        HashMap::from([
            (MACHINE.to_owned(), self.machine.clone()),
            (PROCESS.to_owned(), self.process.clone()),
        ])
    }

    /// What to filter events by.
    pub fn filter(&self) -> String {
        format!("{PROCESS}={}", self.process)
    }

    /// Containers that were made here by processes that are no more.
    pub async fn orphans(&self, client: &Docker) -> Result<Vec<String>, bollard::errors::Error> {
        let ours = format!("{MACHINE}={}", self.machine);
        let filters = HashMap::from([("label", vec![ours])]);
        let options = ListContainersOptionsBuilder::default()
            .all(true)
            .filters(&filters)
            .build();
        let listed = client.list_containers(Some(options)).await?;
        Ok(listed
            .into_iter()
            .filter(|one| one.labels.as_ref().and_then(orphaned) == Some(true))
            .filter_map(|one| one.id)
            .collect())
    }

    /// Networks of such processes.
    pub async fn orphaned_networks(
        &self,
        client: &Docker,
    ) -> Result<Vec<String>, bollard::errors::Error> {
        let ours = format!("{MACHINE}={}", self.machine);
        let filters = HashMap::from([("label", vec![ours])]);
        let options = ListNetworksOptionsBuilder::default()
            .filters(&filters)
            .build();
        let listed = client.list_networks(Some(options)).await?;
        let left = listed
            .into_iter()
            .filter(|one| one.labels.as_ref().and_then(orphaned) == Some(true));
        Ok(left.filter_map(|one| one.id).collect())
    }

    /// Volumes of such processes.
    pub async fn orphaned_volumes(
        &self,
        client: &Docker,
    ) -> Result<Vec<String>, bollard::errors::Error> {
        let all = volumes(client, format!("{MACHINE}={}", self.machine)).await?;
        let left = all.filter(|one| orphaned(&one.labels) == Some(true));
        Ok(left.map(|one| one.name).collect())
    }

    /// Volumes of this process.
    pub async fn own_volumes(
        &self,
        client: &Docker,
    ) -> Result<Vec<String>, bollard::errors::Error> {
        let all = volumes(client, self.filter()).await?;
        Ok(all.map(|one| one.name).collect())
    }
}

async fn volumes(
    client: &Docker,
    label: String,
) -> Result<impl Iterator<Item = Volume>, bollard::errors::Error> {
    let filters = HashMap::from([("label", vec![label])]);
    let options = ListVolumesOptionsBuilder::default()
        .filters(&filters)
        .build();
    let listed = client.list_volumes(Some(options)).await?;
    Ok(listed.volumes.unwrap_or_default().into_iter())
}

/// Whether the process that made something is no more; `None`: that is not known.
fn orphaned(labels: &HashMap<String, String>) -> Option<bool> {
    let process = labels.get(PROCESS)?;
    let pid = process.split('/').nth(1)?.parse().ok()?;
    match mark(pid) {
        Some(now) => Some(now != *process),
        // Where `/proc` hides the processes of others (`hidepid`), not even the first one is seen, which is always there.
        None => fs::read("/proc/1/stat").is_ok().then_some(true),
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(path)
        .unwrap_or_default()
        .trim()
        .to_owned()
}

/// A process as no other one has ever been; `None` if it is not there.
fn mark(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in brackets may have anything in it; the time of birth is field 22.
    let born = stat
        .rsplit_once(')')?
        .1
        .split_whitespace()
        .nth(19)?
        .to_owned();
    let boot = read("/proc/sys/kernel/random/boot_id");
    Some(format!("{boot}/{pid}/{born}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_more_than_its_number() {
        let own = mark(std::process::id()).unwrap();
        assert_eq!(own.split('/').count(), 3);
        assert_eq!(mark(std::process::id()), Some(own));
        assert_eq!(mark(u32::MAX), None);
    }
}
