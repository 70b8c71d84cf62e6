//! Random numbers from the seed that the driver gives: ids must be distinct, but need not be secret.

use headrace_wire::random::SplitMix64;
use headrace_wire::uuid::Uuid;

#[derive(Debug, Clone)]
pub(crate) struct Random(SplitMix64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A version 4 id whose text form does not begin with a dash, which command lines would take for an option.
    pub(crate) fn uuid(&mut self) -> Uuid {
        loop {
            let mut bytes = [0; 16];
            let (high, low) = bytes.split_at_mut(8);
            high.copy_from_slice(&self.next().to_be_bytes());
            low.copy_from_slice(&self.next().to_be_bytes());
            bytes[6] = (bytes[6] & 0x0F) | 0x40;
            bytes[8] = (bytes[8] & 0x3F) | 0x80;
            let id = Uuid(bytes);
            if !id.to_string().starts_with('-') {
                return id;
            }
        }
    }

    /// A version 4 id in the form 8-4-4-4-12, as Kafka writes member ids.
    pub(crate) fn member_id(&mut self, client_id: &str) -> String {
        let Uuid(bytes) = self.uuid();
        let mut text = String::with_capacity(client_id.len() + 37);
        text.push_str(client_id);
        text.push('-');
        for (i, byte) in bytes.iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                text.push('-');
            }
            for nibble in [byte >> 4, byte & 0xF] {
                text.push(char::from_digit(u32::from(nibble), 16).unwrap_or('0'));
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_differ_and_have_the_usual_form() {
        let mut random = Random::new(7);
        let id = random.member_id("app");
        let parts: Vec<usize> = id.split('-').map(str::len).collect();
        assert_eq!(parts, [3, 8, 4, 4, 4, 12]);
        assert_ne!(id, random.member_id("app"));
        assert!((0..1000).all(|_| !random.uuid().to_string().starts_with('-')));
    }
}
