//! Callers' acknowledgements of rows, by the columns that identify them.

use std::collections::BTreeMap;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int8Type, Int16Type, Int32Type, Int64Type};
use arrow_array::{Array, RecordBatch};

use super::ack_tracker::{Ack, Mark};
use crate::error::{Error, Result};
use crate::partition::TopicPartition;

/// Marks by partition.
pub type Marks = Vec<(TopicPartition, Vec<Mark>)>;

/// Reads the columns topic (string), partition (int32), offset (int64), `delivery_count` (int16) and `acknowledge_type` (int8,
/// Kafka's numbers, 1 to 4), a row each. Neighbours that are alike become one mark.
///
/// # Errors
/// Where a column is missing, of another type, has nulls, or a number is none of Kafka's.
pub fn marks_of(batches: &[RecordBatch]) -> Result<Marks> {
    let mut all: BTreeMap<TopicPartition, Vec<Mark>> = BTreeMap::new();
    for batch in batches {
        let topics = column(batch, "topic")?.as_string_opt::<i32>().ok_or_else(|| wrong(batch, "topic"))?;
        let partitions = numbers::<Int32Type>(batch, "partition")?;
        let offsets = numbers::<Int64Type>(batch, "offset")?;
        let counts = numbers::<Int16Type>(batch, "delivery_count")?;
        let types = numbers::<Int8Type>(batch, "acknowledge_type")?;
        // The marks of the partition that the rows before were of.
        let mut at: Option<(&str, i32, &mut Vec<Mark>)> = None;
        for (row, topic) in topics.iter().flatten().enumerate() {
            let (partition, offset) = (partitions.value(row), offsets.value(row));
            let (ack, delivery_count) = (ack_of(types.value(row))?, counts.value(row));
            let marks = match at {
                Some((same, number, marks)) if same == topic && number == partition => marks,
                _ => all.entry(TopicPartition::new(topic, partition)).or_default(),
            };
            match marks.last_mut() {
                Some(mark)
                    if mark.last.checked_add(1) == Some(offset)
                        && mark.delivery_count == delivery_count
                        && mark.ack == ack =>
                {
                    mark.last = offset;
                }
                _ => marks.push(Mark { first: offset, last: offset, delivery_count, ack }),
            }
            at = Some((topic, partition, marks));
        }
    }
    Ok(all.into_iter().collect())
}

fn column<'a>(batch: &'a RecordBatch, name: &str) -> Result<&'a dyn Array> {
    let column = batch
        .column_by_name(name)
        .ok_or_else(|| Error::Usage(format!("the rows to acknowledge have no column {name}")))?;
    if column.null_count() > 0 {
        return Err(Error::Usage(format!("the column {name} of the rows to acknowledge has nulls")));
    }
    Ok(column.as_ref())
}

fn numbers<'a, T: arrow_array::types::ArrowPrimitiveType>(
    batch: &'a RecordBatch,
    name: &str,
) -> Result<&'a arrow_array::PrimitiveArray<T>> {
    column(batch, name)?.as_primitive_opt::<T>().ok_or_else(|| wrong(batch, name))
}

fn wrong(batch: &RecordBatch, name: &str) -> Error {
    let kind = batch.column_by_name(name).map_or_else(String::new, |column| column.data_type().to_string());
    Error::Usage(format!("the column {name} of the rows to acknowledge is of {kind}"))
}

fn ack_of(number: i8) -> Result<Ack> {
    match number {
        1 => Ok(Ack::Accept),
        2 => Ok(Ack::Release),
        3 => Ok(Ack::Reject),
        4 => Ok(Ack::Renew),
        _ => Err(Error::Usage(format!(
            "{number} is no type of acknowledgement: 1 accept, 2 release, 3 reject, 4 renew"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{ArrayRef, Int8Array, Int16Array, Int32Array, Int64Array, StringArray};

    use super::*;

    fn batch(rows: &[(&str, i32, i64, i16, i8)]) -> RecordBatch {
        let columns: [(&str, ArrayRef); 5] = [
            ("topic", Arc::new(StringArray::from_iter_values(rows.iter().map(|row| row.0)))),
            ("partition", Arc::new(Int32Array::from_iter_values(rows.iter().map(|row| row.1)))),
            ("offset", Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.2)))),
            ("delivery_count", Arc::new(Int16Array::from_iter_values(rows.iter().map(|row| row.3)))),
            ("acknowledge_type", Arc::new(Int8Array::from_iter_values(rows.iter().map(|row| row.4)))),
        ];
        RecordBatch::try_from_iter(columns).unwrap()
    }

    fn mark(first: i64, last: i64, delivery_count: i16, ack: Ack) -> Mark {
        Mark { first, last, delivery_count, ack }
    }

    #[test]
    fn neighbours_that_are_alike_are_one_mark_of_their_partition() {
        let rows = [
            ("t", 0, 5, 1, 1),
            ("t", 0, 6, 1, 1),
            ("t", 0, 7, 2, 1),
            ("t", 0, 8, 2, 3),
            ("t", 1, 9, 1, 1),
            ("t", 0, 10, 1, 2),
            ("u", 0, 11, 1, 2),
        ];
        let marks = marks_of(&[batch(&rows), batch(&[("t", 0, 11, 1, 2), ("t", 0, 13, 1, 2)])]).unwrap();
        let expected = [
            (
                TopicPartition::new("t", 0),
                vec![
                    mark(5, 6, 1, Ack::Accept),
                    mark(7, 7, 2, Ack::Accept),
                    mark(8, 8, 2, Ack::Reject),
                    mark(10, 11, 1, Ack::Release),
                    mark(13, 13, 1, Ack::Release),
                ],
            ),
            (TopicPartition::new("t", 1), vec![mark(9, 9, 1, Ack::Accept)]),
            (TopicPartition::new("u", 0), vec![mark(11, 11, 1, Ack::Release)]),
        ];
        assert_eq!(marks, expected);
        assert_eq!(marks_of(&[]).unwrap(), []);
    }

    #[test]
    fn what_does_not_name_rows_is_refused() {
        let good = batch(&[("t", 0, 5, 1, 1)]);
        let reported = |batch: &RecordBatch| marks_of(std::slice::from_ref(batch)).unwrap_err().to_string();
        assert!(reported(&good.project(&[0, 1, 2, 4]).unwrap()).contains("no column delivery_count"));
        assert!(reported(&batch(&[("t", 0, 5, 1, 0)])).contains("0 is no type"));
        let mut columns = good.columns().to_vec();
        columns[2] = Arc::new(Int64Array::from(vec![None]));
        let nulls = RecordBatch::try_from_iter(
            ["topic", "partition", "offset", "delivery_count", "acknowledge_type"]
                .into_iter()
                .zip(columns.clone()),
        );
        assert!(reported(&nulls.unwrap()).contains("offset of the rows to acknowledge has nulls"));
        columns[2] = Arc::new(StringArray::from(vec!["5"]));
        let texts = RecordBatch::try_from_iter(
            ["topic", "partition", "offset", "delivery_count", "acknowledge_type"].into_iter().zip(columns),
        );
        assert!(reported(&texts.unwrap()).contains("offset of the rows to acknowledge is of Utf8"));
    }
}
