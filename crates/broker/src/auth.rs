//! Authorization: every handler asks the [`Authorizer`] before it acts.

/// What a request wants to do with a resource. The numbers are Kafka's (`AclOperation`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Operation {
    /// Read records, or act as a member of a group.
    Read = 3,
    /// Write records.
    Write = 4,
    /// Create topics.
    Create = 5,
    /// Delete topics, groups, records.
    Delete = 6,
    /// Change a resource, such as its number of partitions.
    Alter = 7,
    /// See that a resource exists.
    Describe = 8,
    /// Act as a broker.
    ClusterAction = 9,
    /// Read settings.
    DescribeConfigs = 10,
    /// Change settings.
    AlterConfigs = 11,
    /// Ask for a producer id.
    IdempotentWrite = 12,
}

/// What a request wants to act on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Resource<'a> {
    /// The cluster as a whole.
    Cluster,
    /// A topic by name.
    Topic(&'a str),
    /// A consumer group by id.
    Group(&'a str),
    /// A transactional id.
    TransactionalId(&'a str),
}

impl Resource<'_> {
    /// The operations that exist for this kind of resource, for `authorized operations` fields (KIP-430).
    #[must_use]
    pub fn operations(self) -> &'static [Operation] {
        use Operation::{
            Alter, AlterConfigs, ClusterAction, Create, Delete, Describe, DescribeConfigs, IdempotentWrite,
            Read, Write,
        };
        match self {
            Self::Cluster => {
                &[Create, ClusterAction, DescribeConfigs, AlterConfigs, IdempotentWrite, Alter, Describe]
            }
            Self::Topic(_) => &[Read, Write, Create, Describe, Delete, Alter, DescribeConfigs, AlterConfigs],
            Self::Group(_) => &[Read, Describe, Delete, DescribeConfigs, AlterConfigs],
            Self::TransactionalId(_) => &[Describe, Write],
        }
    }
}

/// Who is asking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Identity<'a> {
    /// Kafka's principal, such as `User:ANONYMOUS`.
    pub principal: &'a str,
    /// The peer's address as the driver named it.
    pub host: &'a str,
}

/// Decides whether a request may act. Asked for every request, so it must be fast and must not block.
pub trait Authorizer: Send {
    /// Whether `who` may do `operation` on `resource`.
    fn authorize(&self, who: Identity<'_>, operation: Operation, resource: Resource<'_>) -> bool;
}

/// Allows everything.
#[derive(Debug, Clone, Copy, Default)]
pub struct AllowAll;

impl Authorizer for AllowAll {
    fn authorize(&self, _: Identity<'_>, _: Operation, _: Resource<'_>) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_fit_a_bit_field() {
        for resource in [Resource::Cluster, Resource::Topic("t"), Resource::Group("g")] {
            assert!(resource.operations().iter().all(|op| (*op as u32) < 31));
        }
    }
}
