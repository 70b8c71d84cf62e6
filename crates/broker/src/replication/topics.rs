//! Topics as the view has them: those that are new, have other settings or more partitions, or are gone.

use std::collections::BTreeSet;
use std::sync::Arc;

use headrace_cluster::model::TopicValue;
use headrace_cluster::view::Changed;
use headrace_log::Disk;
use headrace_wire::uuid::Uuid;

use super::Replication;
use crate::context::{Change, Context};
use crate::store::Place;

/// Directories that are removed in one turn.
const REMOVED_PER_TURN: usize = 32;

impl<D: Disk> Replication<D> {
    /// Takes over what has changed about topics. Their partitions are to be looked at then.
    pub(super) fn take_topics(
        &mut self,
        context: &mut Context<D>,
        changed: &Changed,
        places: &mut BTreeSet<Place>,
    ) {
        if changed.compared {
            self.put_unknown_aside(context);
        }
        let names: Vec<String> = changed.topics.iter().cloned().collect();
        for name in names {
            self.take_topic(context, &name, places);
        }
    }

    /// Whenever the cluster was read anew: topics that it does not have. They may have been deleted while nobody
    /// watched, or the store be another or an older one; so they are kept, under other names.
    fn put_unknown_aside(&mut self, context: &mut Context<D>) {
        let Some(cluster) = &context.cluster else { return };
        let topics = &cluster.member.view().topics;
        let is_known = |name: &str, id: &str| topics.get(name).is_some_and(|topic| topic.value.id == id);
        let unknown: Vec<(Uuid, Arc<str>)> = context
            .store
            .topics()
            .filter(|topic| !is_known(&topic.name, &topic.id.to_string()))
            .map(|topic| (topic.id, topic.name.clone()))
            .collect();
        for (id, name) in unknown {
            self.stop_copies(id);
            match context.store.set_aside(&name) {
                Ok((names, watchers)) => {
                    let names = names.join(", ");
                    let why = format!(
                        "the cluster has no topic {name} of this id; its folders are kept as {names}"
                    );
                    context.store.note_trouble(&why);
                    context.changes.push_back(Change::TopicDeleted { id, name, watchers });
                }
                Err(error) => context.store.note_trouble(&error),
            }
        }
    }

    fn take_topic(&mut self, context: &mut Context<D>, name: &str, places: &mut BTreeSet<Place>) {
        let Some(cluster) = &context.cluster else { return };
        let view = cluster.member.view();
        let value = view.topics.get(name).map(|topic| topic.value.clone());
        let id = value.as_ref().and_then(|value| value.id.parse().ok());
        let here = context.store.by_name(name).map(|topic| topic.id);
        if here.is_some() && here != id {
            self.remove_topic(context, name);
        }
        let (Some(value), Some(id)) = (value, id) else { return };
        if context.store.is_busy(name) {
            self.postponed.insert(name.to_owned());
            return;
        }
        let TopicValue { partitions, configs, .. } = value;
        match context.store.adopt_topic(&context.config, name, id, partitions, configs) {
            Ok(true) => context.changes.push_back(Change::TopicConfigured(id)),
            Ok(false) => {}
            Err(error) => context.store.note_trouble(&error),
        }
        let Some(cluster) = &context.cluster else { return };
        let all = cluster.member.view().partitions.range((id, 0)..=(id, i32::MAX));
        places.extend(all.map(|(place, _)| *place));
    }

    fn remove_topic(&mut self, context: &mut Context<D>, name: &str) {
        let Some(id) = context.store.by_name(name).map(|topic| topic.id) else { return };
        self.stop_copies(id);
        match context.store.start_removal(name) {
            Ok(Some((removing, watchers))) => {
                self.removing.push(removing);
                context.changes.push_back(Change::TopicDeleted { id, name: name.into(), watchers });
            }
            Ok(None) => {}
            Err(error) => context.store.note_trouble(&error),
        }
    }

    /// Nothing of a topic is copied or made any more.
    fn stop_copies(&mut self, id: Uuid) {
        let places: Vec<Place> =
            self.copied_from.range((id, 0)..=(id, i32::MAX)).map(|(place, _)| *place).collect();
        for place in places {
            if let Some(fetcher) =
                self.copied_from.remove(&place).and_then(|node| self.fetchers.get_mut(&node))
            {
                fetcher.forget(place);
            }
        }
        self.placing.forget_topic(|place| place.0 == id);
    }

    /// Removes some directories of topics that are gone.
    pub(super) fn remove_some(&mut self, context: &mut Context<D>) {
        let Some(removing) = self.removing.last_mut() else { return };
        if context.store.remove_some(removing, REMOVED_PER_TURN) {
            return;
        }
        self.removing.pop();
        let mut places = BTreeSet::new();
        for name in std::mem::take(&mut self.postponed) {
            self.take_topic(context, &name, &mut places);
        }
        for place in places {
            self.take_partition(context, place);
        }
    }
}
