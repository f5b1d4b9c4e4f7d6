/* Spark's side of queries: what a session for queries may do, decided on the plans that Spark itself makes of a text.
 *
 * The words of a query have been looked at before, by a lexer of ours that Spark's grammar may outwit. Here nothing has
 * to be guessed: a plan is a tree of classes, and what is not known to be harmless is refused before anything runs. The
 * analysis runs some things by itself, such as subqueries in AS OF and calls in VALUES: so a plan is looked at before
 * it, while it goes on, and at its end. Spark's Scala compiler makes a jar of it (guard.py), and Spark loads it as an
 * extension of its sessions. Sessions without the setting ``spark.sparkport.guard.catalogs`` are not concerned.
 */
package org.apache.spark.sql.sparkport

import java.util.Locale

import scala.collection.mutable

import org.apache.spark.sql.{AnalysisException, SparkSession, SparkSessionExtensions}
import org.apache.spark.sql.catalyst.analysis._
import org.apache.spark.sql.catalyst.expressions.{
  Attribute, Expression, ExprId, Literal, MetadataAttribute, PlanExpression
}
import org.apache.spark.sql.catalyst.expressions.objects.{Invoke, StaticInvoke}
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan
import org.apache.spark.sql.catalyst.rules.Rule
import org.apache.spark.sql.execution.datasources.InsertIntoHadoopFsRelationCommand
import org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation
import org.apache.spark.sql.types.ObjectType

class QueryGuard extends (SparkSessionExtensions => Unit) {
  def apply(extensions: SparkSessionExtensions): Unit = {
    extensions.injectHintResolutionRule(session => new Parsed(session))
    extensions.injectResolutionRule(session => new Parsed(session))
    extensions.injectCheckRule(session => plan => new Analysed(session).root(plan))
  }
}

class NotForQueries(what: String) extends AnalysisException(s"$what cannot be used in queries here")

class Parsed(session: SparkSession) extends Rule[LogicalPlan] {
  private val guard = new Guard(session) {
    protected def node(found: LogicalPlan): Unit = found match {
      case RelationTimeTravel(_, Some(time), _) if time.exists(_.isInstanceOf[PlanExpression[_]]) =>
        throw new NotForQueries("a subquery in AS OF")
      case function: UnresolvedTableValuedFunction => named(function.name)
      case other => if (!Allowed.unresolvedPlans(nameOf(other))) known(other)
    }

    protected def expression(found: Expression): Unit = found match {
      case function: UnresolvedFunction => named(function.nameParts)
      case generator: UnresolvedGenerator => named(generator.name.nameParts)
      case other => if (!Allowed.unresolvedExpressions(nameOf(other))) known(other)
    }

    private def named(parts: Seq[String]): Unit =
      if (parts.length != 1 || !functions(parts.head.toLowerCase(Locale.ROOT)))
        throw new NotForQueries(s"function '${parts.mkString(".")}'")
  }

  def apply(plan: LogicalPlan): LogicalPlan = { guard.root(plan); plan }
}

class Analysed(session: SparkSession) extends Guard(session) {
  private val told = mutable.Set.empty[ExprId]

  protected override def whole(plan: LogicalPlan): Unit = {
    plan.foreach {
      case relation: DataSourceV2Relation =>
        told ++= relation.output.collect {
          case MetadataAttribute(column) if !Allowed.metadataColumns(column.name) => column.exprId
        }
      case _ =>
    }
    kept(plan)
    super.whole(plan)
  }

  protected def node(found: LogicalPlan): Unit = {
    known(found)
    if (!Allowed.passing(found.nodeName)) found.children.foreach(kept)
    // Spark puts all metadata columns of a table beside the one that a query names, and passes them on.
    if (!found.isInstanceOf[DataSourceV2Relation])
      found.expressions.filterNot(found.nodeName == "Project" && _.isInstanceOf[Attribute])
        .foreach(_.references.foreach(hidden))
  }

  protected def expression(found: Expression): Unit = known(found)

  private def kept(plan: LogicalPlan): Unit = plan.output.foreach(hidden)

  private def hidden(column: Attribute): Unit =
    if (told(column.exprId)) throw new NotForQueries(s"column '${column.name}'")
}

abstract class Guard(session: SparkSession) {
  private def setting(name: String): Option[String] = session.conf.getOption(s"spark.sparkport.guard.$name")
  private def settings(name: String): Set[String] = setting(name).toSeq.flatMap(_.split(',')).toSet
  private def catalogs = settings("catalogs")
  protected lazy val functions: Set[String] = settings("functions")

  def root(plan: LogicalPlan): Unit = if (setting("catalogs").isDefined) plan match {
    // How the rows of a query leave Spark. No query has a node like this: a query stands between brackets.
    case write: InsertIntoHadoopFsRelationCommand if isForRows(write) => whole(write.query)
    case query => whole(query)
  }

  private def isForRows(write: InsertIntoHadoopFsRelationCommand): Boolean =
    write.fileFormat.isInstanceOf[ParquetFileFormat] && write.catalogTable.isEmpty &&
      write.outputPath.toUri.getScheme == "file" &&
      setting("folder").contains(write.outputPath.getParent.toUri.getPath)

  protected def node(found: LogicalPlan): Unit
  protected def expression(found: Expression): Unit

  protected def whole(plan: LogicalPlan): Unit = plan.foreach { found =>
    node(found)
    found.innerChildren.foreach {
      case inner: LogicalPlan => whole(inner)
      case _ =>
    }
    found.expressions.foreach(_.foreach { part =>
      expression(part)
      part match {
        case subquery: PlanExpression[_] => whole(subquery.plan.asInstanceOf[LogicalPlan])
        case _ =>
      }
    })
  }

  protected def nameOf(found: AnyRef): String = found.getClass.getName.stripSuffix("$")

  protected def known(found: LogicalPlan): Unit = found match {
    case relation: DataSourceV2Relation => table(relation)
    case other => if (!Allowed.plans(nameOf(other))) throw new NotForQueries(other.nodeName)
  }

  /** Of the catalog that was filled for this query, and rows: metadata tables tell where files are. */
  private def table(relation: DataSourceV2Relation): Unit = {
    val iceberg = relation.table
    if (!relation.catalog.exists(catalog => catalogs(catalog.name)) || iceberg.getClass.getName != Allowed.table)
      throw new NotForQueries(s"'${iceberg.name}'")
    val inner = iceberg.getClass.getMethod("table").invoke(iceberg)
    if (inner.getClass.getName != Allowed.icebergTable) throw new NotForQueries(s"metadata table '${iceberg.name}'")
  }

  protected def known(found: Expression): Unit = {
    val allowed = found match {
      // What some of Spark's functions are replaced by. Functions of catalogs are called in the same way.
      case call: StaticInvoke => isSparks(call.staticObject)
      case call: Invoke => call.targetObject match {
          case Literal(_, ObjectType(cls)) => isSparks(cls)
          case _ => false
        }
      case other => Allowed.expressions(nameOf(other))
    }
    if (!allowed) throw new NotForQueries(s"function '${found.prettyName}'")
  }

  private def isSparks(cls: Class[_]): Boolean = cls.getName.startsWith("org.apache.spark.sql.catalyst.")
}

private object Allowed {
  private def words(text: String): Set[String] = text.split("\\s+").filter(_.nonEmpty).toSet
  private val catalyst = "org.apache.spark.sql.catalyst."

  val table = "org.apache.iceberg.spark.source.SparkTable"
  val icebergTable = "org.apache.iceberg.BaseTable"
  val metadataColumns: Set[String] =
    words("_row_id _last_updated_sequence_number _pos _spec_id _partition _deleted")

  val plans: Set[String] = words("""
    Aggregate AsOfJoin CTERelationDef CTERelationRef Deduplicate Distinct EmptyRelation Except Expand Filter Generate
    GlobalLimit Intersect Join LateralJoin LimitAll LocalLimit LocalRelation Offset OneRowRelation Pivot Project Range
    RebalancePartitions Repartition RepartitionByExpression ResolvedHint ReturnAnswer Sample Sort Subquery SubqueryAlias
    Union UnionLoop UnionLoopRef Unpivot Window WithCTE
  """).map(catalyst + "plans.logical." + _) ++
    Set("analysis.ResolvedInlineTable", "expressions.PipeOperator").map(catalyst + _)

  /** Nodes that have the columns of their children as they are. */
  val passing: Set[String] = words("Filter Join LateralJoin PipeOperator Project ResolvedHint Sort SubqueryAlias")

  val unresolvedPlans: Set[String] = words("""
    analysis.RelationTimeTravel analysis.UnresolvedHaving analysis.UnresolvedInlineTable analysis.UnresolvedRelation
    analysis.UnresolvedSubqueryColumnAliases analysis.UnresolvedTVFAliases plans.logical.UnresolvedHint
    plans.logical.UnresolvedWith plans.logical.WithWindowDefinition
  """).map(catalyst + _)

  val unresolvedExpressions: Set[String] = words("""
    analysis.GetColumnByOrdinal analysis.GetViewColumnByNameAndOrdinal analysis.MultiAlias analysis.ResolvedStar
    analysis.TempResolvedColumn analysis.UnresolvedAlias analysis.UnresolvedAttribute
    analysis.UnresolvedExtractValue analysis.UnresolvedOrdinal analysis.UnresolvedPipeAggregateOrdinal
    analysis.UnresolvedRegex analysis.UnresolvedStar analysis.UnresolvedStarExceptOrReplace
    expressions.LateralColumnAliasReference expressions.NamePlaceholder expressions.NamedArgumentExpression
    expressions.UnresolvedCollation expressions.UnresolvedNamedLambdaVariable
    expressions.UnresolvedWindowExpression
  """).map(catalyst + _)

  /** Missing are those that call Java, Python or functions of catalogs, read files or tell where files are. */
  val expressions: Set[String] = Seq(
    "" -> """
    Abs Acos Acosh Add AddMonths AesDecrypt AesEncrypt Alias And ApproxTopKEstimate ArrayAggregate ArrayAppend
    ArrayCompact ArrayContains ArrayDistinct ArrayExcept ArrayExists ArrayFilter ArrayForAll ArrayInsert
    ArrayIntersect ArrayJoin ArrayMax ArrayMin ArrayPosition ArrayPrepend ArrayRemove ArrayRepeat ArraySize
    ArraySort ArrayTransform ArrayUnion ArraysOverlap ArraysZip Ascii Asin Asinh AssertTrue AtLeastNNonNulls Atan
    Atan2 Atanh AttributeReference BRound Base64 Between Bin BinaryPad BinaryPredicate BitLength BitmapAndAgg
    BitmapBitPosition BitmapBucketNumber BitmapConstructAgg BitmapCount BitmapOrAgg BitwiseAnd BitwiseCount
    BitwiseGet BitwiseNot BitwiseOr BitwiseXor CaseWhen Cast Cbrt Ceil CheckOverflow CheckOverflowInSum Chr Coalesce
    Collate Collation CollationAwareMurmur3Hash CollationAwareXxHash64 CollationKey Collations CommonExpressionDef
    CommonExpressionRef Concat ConcatWs Contains Conv ConvertTimezone Cos Cosh Cot Crc32 CreateArray CreateMap
    CreateNamedStruct Csc CsvToStructs Cube CumeDist CurrentCatalog CurrentDatabase CurrentDate CurrentRow
    CurrentTime CurrentTimeZone CurrentTimestamp DateAdd DateAddInterval DateAddYMInterval DateDiff
    DateFormatClass DateFromUnixDate DateSub DatetimeSub DayName DayOfMonth DayOfWeek DayOfYear
    DecimalAddNoOverflowCheck DecimalDivideWithOverflowCheck Decode DenseRank Divide DivideDTInterval DivideInterval
    DivideYMInterval DropField ElementAt Elt Empty2Null Encode EndsWith EqualNull EqualNullSafe EqualTo EulerNumber
    Exists Exp Explode Expm1 Extract ExtractANSIIntervalDays ExtractANSIIntervalHours ExtractANSIIntervalMinutes
    ExtractANSIIntervalMonths ExtractANSIIntervalSeconds ExtractANSIIntervalYears ExtractIntervalDays
    ExtractIntervalHours ExtractIntervalMinutes ExtractIntervalMonths ExtractIntervalSeconds ExtractIntervalYears
    Factorial FindInSet Flatten Floor FormatNumber FormatString FromUTCTimestamp FromUnixTime GeneratorOuter Get
    GetArrayItem GetArrayStructFields GetJsonObject GetMapValue GetStructField GetTimestamp GreaterThan
    GreaterThanOrEqual Greatest Grouping GroupingID GroupingSets Hex HllSketchEstimate HllUnion Hour HoursOfTime
    Hypot ILike If In InSet InSubquery InitCap Inline IntegralDivide IsNaN IsNotNull
    IsNotUnknown$$anon$2 IsNull IsUnknown$$anon$1 IsValidUTF8
    JsonObjectKeys JsonToStructs JsonTuple KllSketchGetNBigint KllSketchGetNDouble KllSketchGetNFloat
    KllSketchGetQuantileBigint KllSketchGetQuantileDouble KllSketchGetQuantileFloat KllSketchGetRankBigint
    KllSketchGetRankDouble KllSketchGetRankFloat KllSketchMergeBigint KllSketchMergeDouble KllSketchMergeFloat
    KllSketchToStringBigint KllSketchToStringDouble KllSketchToStringFloat KnownFloatingPointNormalized
    KnownNotContainsNull KnownNotNull KnownNullable Lag LambdaFunction LastDay LateralSubquery Lead Least Left
    Length LengthOfJsonArray LessThan LessThanOrEqual Levenshtein Like LikeAll LikeAny ListQuery Literal
    LocalTimestamp Log Log10 Log1p Log2 Logarithm Lower Luhncheck MakeDTInterval MakeDate MakeDecimal MakeInterval
    MakeTime MakeTimestamp MakeTimestampFromDateTime MakeTimestampNTZ MakeValidUTF8 MakeYMInterval MapConcat
    MapContainsKey MapEntries MapFilter MapFromArrays MapFromEntries MapKeys MapSort MapValues MapZipWith Mask Md5
    MicrosToTimestamp MillisToTimestamp Minute MinutesOfTime MonotonicallyIncreasingID Month MonthName MonthsBetween
    MultiCommutativeOp Multiply MultiplyDTInterval MultiplyInterval MultiplyYMInterval Murmur3Hash NTile NaNvl
    NamedLambdaVariable NextDay Not NotLikeAll NotLikeAny Now NthValue NullIf NullIfZero Nvl Nvl2 OctetLength Or
    OuterReference OuterScopeReference Overlay ParseToDate ParseToTimestamp ParseUrl PercentRank Pi PipeExpression
    Pmod PosExplode Pow PreciseTimestampConversion Quarter Quote RLike RaiseError Rand RandStr Randn Rank
    RegExpCount RegExpExtract RegExpExtractAll RegExpInStr RegExpReplace RegExpSubStr Remainder ResolvedCollation
    Reverse Right Rint Rollup Round RoundCeil RoundFloor RowNumber SQLKeywords ScalarSubquery SchemaOfCsv
    SchemaOfJson Sec Second SecondWithFraction SecondsOfTime SecondsOfTimeWithFraction SecondsToTimestamp
    SemiStructuredExtract Sentences Sequence SessionWindow Sha1 Sha2 ShiftLeft ShiftRight ShiftRightUnsigned Shuffle
    Signum Sin Sinh Size Slice SortArray SortOrder SoundEx SparkPartitionID SparkVersion SpecifiedWindowFrame
    SplitPart Sqrt Stack StartsWith StringDecode StringInstr StringLPad StringLocate StringRPad StringRepeat
    StringReplace StringSpace StringSplit StringSplitSQL StringToMap StringTranslate StringTrim StringTrimBoth
    StringTrimLeft StringTrimRight StructsToCsv StructsToJson StructsToXml Substring SubstringIndex Subtract
    SubtractDates SubtractTimes SubtractTimestamps Tan Tanh ThetaDifference ThetaIntersection ThetaSketchEstimate
    ThetaUnion TimeAddInterval TimeDiff TimeTrunc TimeWindow TimestampAdd TimestampAddInterval
    TimestampAddYMInterval TimestampDiff ToBinary ToCharacter ToDegrees ToNumber ToPrettyString ToRadians ToTime
    ToUTCTimestamp ToUnixTimestamp TransformKeys TransformValues TruncDate TruncTimestamp TryAdd TryAesDecrypt
    TryDivide TryElementAt TryEval TryMakeInterval TryMakeTimestamp TryMakeTimestampFromDateTime TryMod TryMultiply
    TryParseUrl TrySubtract TryToBinary TryToNumber TryUrlDecode TryValidateUTF8 TypeOf TypedNullLiteral UnBase64
    UnaryMinus UnaryPositive UnboundedFollowing UnboundedPreceding Unhex Uniform UnixDate UnixMicros UnixMillis
    UnixSeconds UnixTimestamp UnscaledValue UnspecifiedFrame UpCast UpdateFields Upper UrlDecode UrlEncode Uuid
    ValidateUTF8 WeekDay WeekOfYear WidthBucket WindowExpression WindowSpecDefinition WindowTime With WithField
    XxHash64 Year YearOfWeek ZeroIfNull ZipWith
    """,
    "aggregate." -> """
    AggregateExpression AnyValue ApproxTopK ApproxTopKAccumulate ApproxTopKCombine ApproximatePercentile Average
    BitAndAgg BitOrAgg BitXorAgg BoolAnd BoolOr CollectList CollectSet Corr Count CountIf CountMinSketchAgg
    CovPopulation CovSample First HistogramNumeric HllSketchAgg HllUnionAgg HyperLogLogPlusPlus KllMergeAggBigint
    KllMergeAggDouble KllMergeAggFloat KllSketchAggBigint KllSketchAggDouble KllSketchAggFloat Kurtosis Last ListAgg
    Max MaxBy Median Min MinBy Mode Percentile PercentileCont PercentileDisc PivotFirst RegrAvgX RegrAvgY RegrCount
    RegrIntercept RegrR2 RegrReplacement RegrSXX RegrSXY RegrSYY RegrSlope Skewness StddevPop StddevSamp Sum
    ThetaIntersectionAgg ThetaSketchAgg ThetaUnionAgg VariancePop VarianceSamp
    """,
    "st." -> """
    ST_AsBinary ST_GeogFromWKB ST_GeomFromWKB ST_SetSrid ST_Srid
    """,
    "variant." -> """
    IsVariantNull ParseJson SchemaOfVariant SchemaOfVariantAgg ToVariantObject VariantExplode VariantGet
    """
  ).flatMap { case (room, names) => words(names).map(catalyst + "expressions." + room + _) }.toSet
}
