//! A column's type with its domains taken off, and in which form its values travel.

/// What a column's values are, whatever domains lie above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BaseType {
    pub oid: u32,
    /// `atttypmod` of the base type, or of an array's elements; -1 for none.
    pub typmod: i32,
    pub is_enum: bool,
    /// The binary form is the text form (`textsend` and its like).
    pub sends_text: bool,
    /// For an array.
    pub element: Option<Element>,
}

/// What an array holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Element {
    /// As `array_send` names it: a domain's own oid.
    pub declared_oid: u32,
    /// Its base type, which is an array only below a domain.
    pub oid: u32,
    pub is_array: bool,
    pub is_enum: bool,
    pub sends_text: bool,
    /// Between two elements in the text form.
    pub delimiter: u8,
}

impl BaseType {
    /// A type without elements.
    pub fn scalar(oid: u32, typmod: i32) -> Self {
        BaseType { oid, typmod, is_enum: false, sends_text: false, element: None }
    }

    /// An array of a built-in type.
    pub fn array(oid: u32, element_oid: u32) -> Self {
        let element = Element {
            declared_oid: element_oid,
            oid: element_oid,
            is_array: false,
            is_enum: false,
            sends_text: false,
            delimiter: b',',
        };
        BaseType { element: Some(element), ..BaseType::scalar(oid, -1) }
    }

    /// An array's element as a type of its own.
    pub fn element_type(&self) -> Option<BaseType> {
        let element = self.element?;
        Some(BaseType {
            is_enum: element.is_enum,
            sends_text: element.sends_text,
            ..BaseType::scalar(element.oid, self.typmod)
        })
    }
}
