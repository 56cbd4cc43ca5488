//! One table, as aligned text and as Markdown.

pub struct Table {
    titles: Vec<String>,
    /// Numbers stand on the right.
    right: Vec<bool>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Titles of columns; one that begins with `>` is aligned to the right.
    pub fn new(titles: &[&str]) -> Self {
        Table {
            right: titles.iter().map(|title| title.starts_with('>')).collect(),
            titles: titles.iter().map(|title| title.trim_start_matches('>').to_owned()).collect(),
            rows: Vec::new(),
        }
    }

    /// A row of as many cells as there are titles.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Lines without a border, two spaces between columns; columns that are empty throughout are left out.
    pub fn text(&self, indent: &str) -> String {
        let used: Vec<usize> = (0..self.titles.len()).filter(|at| self.is_used(*at)).collect();
        let widths: Vec<usize> = used.iter().map(|at| self.width(*at)).collect();
        let line = |cells: &[String]| {
            let padded = used.iter().zip(&widths).map(|(at, width)| match self.right[*at] {
                true => format!("{:>width$}", cells[*at]),
                false => format!("{:<width$}", cells[*at]),
            });
            format!("{indent}{}", padded.collect::<Vec<_>>().join("  ")).trim_end().to_owned() + "\n"
        };
        std::iter::once(&self.titles).chain(&self.rows).map(|cells| line(cells)).collect()
    }

    pub fn markdown(&self) -> String {
        let used: Vec<usize> = (0..self.titles.len()).filter(|at| self.is_used(*at)).collect();
        let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
        let pick = |cells: &[String]| used.iter().map(|at| escape(&cells[*at])).collect();
        let rule = used.iter().map(|at| if self.right[*at] { "---:" } else { "---" }.to_owned()).collect();
        let body: String = self.rows.iter().map(|cells| line(pick(cells))).collect();
        line(pick(&self.titles)) + &line(rule) + &body
    }

    fn is_used(&self, at: usize) -> bool {
        self.rows.iter().any(|cells| !cells[at].is_empty())
    }

    fn width(&self, at: usize) -> usize {
        let cells = self.rows.iter().map(|cells| cells[at].chars().count());
        cells.chain([self.titles[at].chars().count()]).max().unwrap_or(0)
    }
}

/// A cell's text must neither end the cell nor the row.
fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('|', "\\|").replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligns_and_leaves_out_empty_columns() {
        let mut table = Table::new(&["what", "at", ">n"]);
        table.row(["a|b".to_owned(), String::new(), "1,000".to_owned()]);
        table.row(["c".to_owned(), String::new(), "7".to_owned()]);
        assert_eq!(table.text("  "), "  what      n\n  a|b   1,000\n  c         7\n");
        assert_eq!(table.markdown(), "| what | n |\n| --- | ---: |\n| a\\|b | 1,000 |\n| c | 7 |\n");
    }
}
