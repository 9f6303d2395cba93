//! Whole numbers between `$((` and `))`.

use std::iter::Peekable;
use std::str::Chars;

/// Parentheses inside each other: more is no sum that a person wrote.
const DEEPEST: usize = 64;

/// What a sum comes to; `variable` says what a name stands for.
///
/// # Errors
/// Why it is not known.
pub(super) fn evaluate(text: &str, variable: &dyn Fn(&str) -> Result<i64, String>) -> Result<i64, String> {
    let mut sum = Sum { characters: text.chars().peekable(), variable, depth: 0 };
    let number = sum.terms()?;
    match sum.peek() {
        None => Ok(number),
        Some(c) => Err(format!("`{c}` in `{}` is not carried out", text.trim())),
    }
}

struct Sum<'a> {
    characters: Peekable<Chars<'a>>,
    variable: &'a dyn Fn(&str) -> Result<i64, String>,
    depth: usize,
}

impl Sum<'_> {
    fn peek(&mut self) -> Option<char> {
        while self.characters.next_if(|c| c.is_whitespace()).is_some() {}
        self.characters.peek().copied()
    }
    fn terms(&mut self) -> Result<i64, String> {
        let mut left = self.factors()?;
        while let Some(sign) = self.peek().filter(|c| matches!(c, '+' | '-')) {
            self.characters.next();
            let right = self.factors()?;
            let result = if sign == '+' { left.checked_add(right) } else { left.checked_sub(right) };
            left = result.ok_or("the number is out of reach")?;
        }
        Ok(left)
    }
    fn factors(&mut self) -> Result<i64, String> {
        let mut left = self.atom()?;
        while let Some(sign) = self.peek().filter(|c| matches!(c, '*' | '/' | '%')) {
            self.characters.next();
            let right = self.atom()?;
            let result = match sign {
                '*' => left.checked_mul(right),
                '/' => left.checked_div(right),
                _ => left.checked_rem(right),
            };
            left = result.ok_or("the number is out of reach, or divided by zero")?;
        }
        Ok(left)
    }
    fn atom(&mut self) -> Result<i64, String> {
        match self.peek() {
            Some('(') => {
                self.depth += 1;
                if self.depth > DEEPEST {
                    return Err("too many parentheses".to_owned());
                }
                self.characters.next();
                let number = self.terms()?;
                if self.peek() != Some(')') {
                    return Err("a parenthesis is missing".to_owned());
                }
                self.characters.next();
                self.depth -= 1;
                Ok(number)
            }
            Some('-') => {
                self.depth += 1;
                if self.depth > DEEPEST {
                    return Err("too many signs".to_owned());
                }
                self.characters.next();
                let number = self.atom()?.checked_neg().ok_or("the number is out of reach")?;
                self.depth -= 1;
                Ok(number)
            }
            Some(c) if c.is_ascii_digit() => {
                self.taken(|c| c.is_ascii_digit()).parse().map_err(|_| "the number is out of reach".to_owned())
            }
            Some(c) if c.is_ascii_alphabetic() || matches!(c, '_' | '$' | '{') => {
                let name = self.taken(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '{' | '}'));
                (self.variable)(name.trim_matches(['$', '{', '}']))
            }
            Some(c) => Err(format!("`{c}` in a sum is not carried out")),
            None => Err("a number is missing".to_owned()),
        }
    }
    fn taken(&mut self, wanted: impl Fn(char) -> bool) -> String {
        let mut text = String::new();
        while let Some(c) = self.characters.next_if(|c| wanted(*c)) {
            text.push(c);
        }
        text
    }
}
