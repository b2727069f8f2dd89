use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::BoxError;
use crate::gate::outcome::Answer;

/// An answer of any type that serde can write and read. It is stored as JSON.
///
/// A type may change while records live. Give new fields `#[serde(default)]`, and do not rename or remove fields: a
/// record that cannot be read is reported as damaged.
///
/// JSON has no NaN and no infinity: such a float is written as `null` and cannot be read again. The first caller gets
/// the answer, and the record is damaged for every copy. Keep such floats out of the type, or write them as text.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// # use std::sync::Arc;
/// # use hapax::store::Memory;
/// # use hapax::{Gate, Identity, Key, Scope, Settings};
/// # let gate = Gate::builder(Arc::new(Memory::new()), Settings::default()).build()?;
/// # let call = Identity::plain().call(&Scope::tenant("shop", "acme")?, &Key::new("order-7")?);
/// use hapax::gate::Json;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Debug, Serialize, Deserialize)]
/// struct Charge {
///     number: u32,
/// }
///
/// for number in 1..=2 {
///     let ran = gate.run(call, async move |_| Ok(Json(Charge { number }))).await?;
///     assert_eq!(ran.answer.0.number, 1);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Json<T>(pub T);

impl<T: Serialize + DeserializeOwned + Send + 'static> Answer for Json<T> {
    /// # Panics
    /// If the type cannot be written as JSON, for instance a map whose keys are no texts.
    fn encode(&self) -> Bytes {
        serde_json::to_vec(&self.0).expect("the type can be written as JSON").into()
    }

    fn decode(stored: Bytes) -> Result<Self, BoxError> {
        Ok(Self(serde_json::from_slice(&stored)?))
    }
}
