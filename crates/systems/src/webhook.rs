//! Endpoints of webhooks.

use crate::table::Offers;

pub(crate) const OFFERS: Offers = Offers::NONE;
