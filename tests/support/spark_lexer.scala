/* Reads a text in base64 from each line and writes Spark's tokens of it, each in base64; "!" where Spark reads none. */
package org.apache.spark.sql.catalyst.parser

import java.nio.charset.StandardCharsets.UTF_8
import java.util.Base64

import org.antlr.v4.runtime.{CharStreams, Token}

object SparkLexer {
  def main(arguments: Array[String]): Unit =
    scala.io.Source.stdin.getLines().foreach { line =>
      val lexer = new SqlBaseLexer(new UpperCaseCharStream(CharStreams.fromString(decoded(line))))
      lexer.removeErrorListeners()
      val all = Iterator.continually(lexer.nextToken()).takeWhile(_.getType != Token.EOF).toList
      val broken = lexer.has_unclosed_bracketed_comment ||
        all.exists(_.getType == SqlBaseLexer.UNRECOGNIZED)
      val seen = all.filter(_.getChannel == Token.DEFAULT_CHANNEL).map(token => encoded(token.getText))
      println(if (broken) "!" else seen.mkString(" "))
    }

  private def decoded(text: String) = new String(Base64.getDecoder.decode(text), UTF_8)
  private def encoded(text: String) = Base64.getEncoder.encodeToString(text.getBytes(UTF_8))
}
