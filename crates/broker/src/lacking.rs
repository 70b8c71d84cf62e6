//! What Apache Kafka has and this broker does not: how clients learn of it, by name.

/// The page that lists what is lacking.
const PAGE: &str = "docs/compatibility.md#what-the-embedded-broker-lacks";

/// The sentence for an answer's error message; `what` is a plural such as `transactions`.
pub(crate) fn lacks(what: &str) -> String {
    format!("this broker has no {what} yet: {PAGE}")
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_page_has_the_section_that_messages_name() {
        let page = include_str!("../../../docs/compatibility.md");
        assert!(page.contains("\n## What the embedded broker lacks\n"));
    }
}
