//! How a sandbox comes to be: a child is told what to become, and given what it needs.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use belljar_spec::Weakening;

use super::{Phase, Sandbox};
use crate::cgroup::Group;
use crate::confine::{Namespaces, Network};
use crate::error::{Context, Result, Step};
use crate::keeper::embryo::Kind;
use crate::keeper::shared::{FirstNetwork, Shared};
use crate::plan::{self, Plan};
use crate::protocol::{Handle, ZygoteId};

/// Setting up takes a millisecond; a host on which it takes this long is broken.
const SETUP_TIME: Duration = Duration::from_secs(20);

impl Sandbox {
    /// Tells a child what to become. What is wrong before that is the error; what goes wrong in it comes as an event.
    pub fn open(
        handle: Handle,
        plan: Plan,
        zygote: Option<ZygoteId>,
        shared: &mut Shared,
    ) -> Result<Self> {
        let (mode, zygote) = shared.mode_for(zygote, &plan);
        let kind = Kind {
            mode,
            namespaces: Namespaces::of(&plan),
            with_group: plan.keeps(Weakening::Cgroups),
            filtered: plan.keeps(Weakening::Seccomp),
            zygote,
        };
        let mut embryo = shared.embryo(kind, &plan)?;
        let zygote = zygote.and_then(|id| shared.zygotes.get_mut(&id));
        let moulds = zygote.map(|zygote| &mut zygote.moulds);
        match embryo.tell(&plan, moulds) {
            Ok(()) => {
                let mut sandbox = Self {
                    handle,
                    plan,
                    mode,
                    owner: embryo.owner,
                    pid: embryo.pid,
                    pidfd: embryo.pidfd,
                    control: embryo.control,
                    control_ended: false,
                    watched: false,
                    writing: false,
                    group: embryo.group,
                    behind: None,
                    limits_in_force: Vec::new(),
                    unthrottled: false,
                    filters: embryo.filters,
                    network: embryo.network,
                    // One that is to have a network leaves this one.
                    reusable: embryo.inherited,
                    settled: false,
                    joins: Vec::new(),
                    started: false,
                    beside: false,
                    commands: BTreeMap::new(),
                    left: Vec::new(),
                    meters: Vec::new(),
                    workspace: None,
                    rules: None,
                    surroundings: None,
                    inspected: None,
                    doors: Vec::new(),
                    phase: Phase::SettingUp {
                        deadline: Instant::now() + SETUP_TIME,
                    },
                    queued: Vec::new(),
                    ordered: None,
                    arrived: None,
                    lone_by: None,
                    look_again: None,
                    closing: false,
                    silent: false,
                    events: VecDeque::new(),
                };
                // What follows has time; the child has not. Where others run too, waiting for another core costs more.
                if !sandbox.plan.kept && embryo.apart.is_none() {
                    shared.step_aside();
                }
                let furnished = sandbox.furnish(shared).and_then(|()| {
                    sandbox.settle(shared);
                    sandbox.set_bounds(shared)
                });
                if let Err(error) = furnished {
                    sandbox.fail(error);
                }
                Ok(sandbox)
            }
            Err(error) => {
                embryo.discard(shared);
                Err(error)
            }
        }
    }

    /// Makes what the child needs last, while it makes its root.
    fn furnish(&mut self, shared: &mut Shared) -> Result<()> {
        shared.init()?;
        if let Some(group) = &mut self.group {
            group.complete()?;
        }
        if let Some(group) = &self.group {
            // Before there can be any.
            self.limits_in_force = self.limit_sockets(group, &self.plan.limits)?;
        }
        Ok(())
    }

    /// While the child, which is still ours, goes on with what it has got. Nothing else runs in its groups before they have been read back.
    fn set_bounds(&mut self, shared: &mut Shared) -> Result<()> {
        if let Some(group) = &self.group {
            let in_force = group.apply(&self.plan.limits, self.plan.kept)?;
            self.limits_in_force.extend(in_force);
        }
        shared.settle_in(Some(self.pid));
        shared.look_at_host()
    }

    /// Hands that over, as soon as the network is there too.
    pub fn settle(&mut self, shared: &mut Shared) {
        let given = self.network == Network::Given;
        if self.settled || given && matches!(shared.network, FirstNetwork::Awaited) {
            return;
        }
        self.settled = true;
        let network = match &mut shared.network {
            made @ FirstNetwork::Made(_) if given => std::mem::replace(made, FirstNetwork::None),
            _ => FirstNetwork::None,
        };
        if let Err(error) = self.hand_over(&network, shared) {
            self.fail(error);
        }
    }

    fn hand_over(&mut self, network: &FirstNetwork, shared: &mut Shared) -> Result<()> {
        let joins = self.group.as_ref().map(Group::joins).transpose()?;
        let joins = joins.unwrap_or_default();
        let mut fds = vec![shared.init()?];
        fds.extend(joins.iter().map(AsFd::as_fd));
        if let FirstNetwork::Made(network) = network {
            fds.push(network.as_fd());
        }
        let place = plan::Place {
            cgroup_joins: joins.len(),
            network: matches!(network, FirstNetwork::Made(_)),
            limits: self.plan.limits,
        };
        let told = self.control.order(&place, &fds).during(Step::Init, "plan");
        self.joins = joins;
        told
    }
}
